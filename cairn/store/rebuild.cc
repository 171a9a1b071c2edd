// A new index from the segments alone: every block where a whole record stands becomes a row.
//
// It is built beside the old one and takes its name when it is complete.
#include <algorithm>

#include "cairn/core/bytes.h"
#include "cairn/store/index.h"
#include "cairn/store/segment.h"

namespace cairn {
namespace {

constexpr uint64_t kReadBytes = uint64_t{1} << 20;
constexpr size_t kRowsPerInsert = 1024;

bool is_blank(std::span<const std::byte> block) {
  return std::ranges::all_of(block, [](std::byte b) { return b == std::byte{0}; });
}

class Scan {
 public:
  Scan(Index& index, StoreReport& report, std::function<void(uint64_t bytes)> on_bytes)
      : index_(index), report_(report), on_bytes_(std::move(on_bytes)) {}

  Result<void> segment(File& file, uint64_t id) {
    const uint64_t size = CAIRN_TRY(file.size());
    for (Place place{.segment = id}; place.offset < size;) {
      const uint64_t bytes = CAIRN_TRY(record_or_block(file, place));
      on_bytes_(std::min(bytes, size - place.offset));
      place.offset += bytes;
    }
    return insert();
  }

 private:
  // Looks at what begins at the place; returns how many bytes that were.
  Result<uint64_t> record_or_block(File& file, const Place& place) {
    const auto block = CAIRN_TRY(block_at(file, place.offset));
    if (block.empty() || is_blank(block)) return kRecordAlignment;
    const auto header = CAIRN_TRY(header_at(file, place, block));
    if (!header) {
      report_.orphaned_bytes += kRecordAlignment;
      return kRecordAlignment;
    }
    const uint64_t bytes = stored_bytes(header->info);
    const auto stored = CAIRN_TRY(read_aligned(file, place.offset, bytes, record_));
    if (const auto damage = damage_of(stored, header->info, place)) {
      report_.damage.push_back(
          fmt::format("{}: record at byte {}: {}", file.path(), place.offset, *damage));
      report_.orphaned_bytes += bytes;
    } else {
      CAIRN_TRY(add(*header, place));
    }
    return bytes;
  }

  // A block by way of larger pieces: most of a preallocated segment is blank.
  Result<std::span<const std::byte>> block_at(File& file, uint64_t offset) {
    if (offset < piece_begin_ || offset + kRecordAlignment > piece_begin_ + piece_.size() ||
        piece_path_ != file.path()) {
      piece_ = CAIRN_TRY(read_aligned(file, offset, kReadBytes, piece_buffer_));
      piece_begin_ = offset;
      piece_path_ = file.path();
    }
    const uint64_t skipped = offset - piece_begin_;
    return piece_.subspan(std::min(skipped, piece_.size()),
                          std::min(kRecordAlignment, piece_.size() - skipped));
  }

  // Headers with many tokens are longer than a block.
  Result<std::optional<RecordHeader>> header_at(File& file,
                                                const Place& place,
                                                std::span<const std::byte> block) {
    const uint64_t bytes = claimed_header_bytes(block);
    if (bytes <= block.size()) return parse_header(block, place);
    return parse_header(CAIRN_TRY(read_aligned(file, place.offset, bytes, record_)), place);
  }

  Result<void> add(const RecordHeader& header, const Place& place) {
    ++report_.records;
    report_.bytes += header.info.payload_bytes;
    rows_.push_back({.record = {.info = header.info}, .place = place});
    return rows_.size() < kRowsPerInsert ? Result<void>() : insert();
  }

  Result<void> insert() {
    CAIRN_TRY(index_.insert(rows_, {}));
    rows_.clear();
    return {};
  }

  Index& index_;
  StoreReport& report_;
  const std::function<void(uint64_t bytes)> on_bytes_;
  std::vector<IndexedRecord> rows_;
  AlignedBuffer record_;
  AlignedBuffer piece_buffer_;
  std::span<const std::byte> piece_;
  uint64_t piece_begin_ = 0;
  std::string piece_path_;
};

Result<void> remove_if_there(FileSystem& fs, const std::string& path) {
  const auto removed = fs.remove(path);
  if (!removed && removed.error().code != Code::NotFound) return removed;
  return {};
}

// The old log goes first: it must not be applied to the new file.
Result<void> replace_index(FileSystem& fs, const std::string& folder, const std::string& built) {
  const std::string path = folder + "/index.sqlite";
  CAIRN_TRY(remove_if_there(fs, path + "-wal"));
  CAIRN_TRY(remove_if_there(fs, path + "-shm"));
  CAIRN_TRY(fs.rename(built, path));
  return fs.sync_folder(folder);
}

Result<StoreReport> scan_all(FileSystem& fs,
                             const std::string& segments,
                             Index& index,
                             const StoreProgress& progress) {
  StoreReport report;
  uint64_t done = 0, total = 0;
  const std::vector<uint64_t> ids = CAIRN_TRY(list_segments(fs, segments));
  for (uint64_t id : ids) {
    const std::string path = segments + "/" + segment_name(id);
    if (!fs.is_abandoned(path))
      return fail(Code::BadInput, "{}: in use, expected a store that no process has open", path);
    const auto file = CAIRN_TRY(fs.open_read(path));
    total += CAIRN_TRY(file->size());
  }
  for (uint64_t id : ids) {
    const auto file = CAIRN_TRY(fs.open_read(segments + "/" + segment_name(id), Access::direct));
    Scan scan(index, report, [&](uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, total);
    });
    CAIRN_TRY(scan.segment(*file, id));
  }
  return report;
}

}  // namespace

namespace {

Result<StoreReport> build_index(FileSystem& fs,
                                const std::string& segments,
                                const std::string& path,
                                const StoreProgress& progress) {
  const std::unique_ptr<Index> index = CAIRN_TRY(Index::open(path));
  StoreReport report = CAIRN_TRY(scan_all(fs, segments, *index, progress));
  // The budget was in the lost index: what is there must fit the new one.
  const uint64_t budget = std::max(CAIRN_TRY(index->max_bytes()), CAIRN_TRY(index->totals()).bytes);
  CAIRN_TRY(index->set_max_bytes(budget));
  CAIRN_TRY(index->seal());
  return report;
}

Result<void> remove_all(FileSystem& fs, const std::string& built) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"})
    CAIRN_TRY(remove_if_there(fs, built + suffix));
  return {};
}

}  // namespace

Result<StoreReport> Store::rebuild(const std::string& folder,
                                   const StoreOptions& options,
                                   const StoreProgress& progress) {
  FileSystem& fs = *options.fs;
  const std::string built = folder + "/index.sqlite.new";
  CAIRN_TRY(remove_all(fs, built));
  auto report = build_index(fs, folder + "/segments", built, progress);
  if (!report) {
    (void)remove_all(fs, built);
    return report;
  }
  CAIRN_TRY(replace_index(fs, folder, built));
  return report;
}

}  // namespace cairn
