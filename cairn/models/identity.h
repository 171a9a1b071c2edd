// What names a model's weights: the SHA-256 of its file, that is of metadata, tensor table and data
// at once. It equals what `sha256sum` prints.
//
// Hashing reads the whole file, so the digest of a large one is kept in a small file: beside the
// model ("<model>.identity") or, where that folder cannot be written, in a folder of the caller's
// choice. It is believed only while device, inode, size and time of modification of the model are
// those it was computed for. A cache that is absent, damaged or stale is ignored.
#ifndef CAIRN_MODELS_IDENTITY_H_
#define CAIRN_MODELS_IDENTITY_H_

#include <string>

#include "cairn/core/hash.h"
#include "cairn/io/file.h"
#include "cairn/models/mapped_file.h"

namespace cairn {

struct IdentityCache {
  FileSystem& files;
  std::string folder;            // used when the model's own folder is not writable; empty: none
  uint64_t min_bytes = 8 << 20;  // smaller files are hashed every time
};

Digest file_identity(const std::string& path, const MappedFile& file, const IdentityCache& cache);

}  // namespace cairn

#endif  // CAIRN_MODELS_IDENTITY_H_
