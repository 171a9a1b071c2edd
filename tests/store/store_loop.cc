// store_loop FOLDER SEED MAX_BYTES SECONDS LOG: works on a store as processes do that share one.
//
// Records form a tree that all processes know; a prompt is a path from its root. Every turn takes a
// path, reads what is there of it and writes the rest; now and then it touches, removes, syncs and
// collects. With MAX_BYTES 0 nothing is ever evicted or removed. The numbers of records that
// write() has promised go to LOG, four bytes each. Ends after SECONDS, or with what went wrong.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "cairn/store/store.h"
#include "tests/support/stored.h"

namespace cairn::testing {
namespace {

constexpr uint64_t kTree = 3000;  // numbers 1 to kTree; the parent of n is n / 3

std::vector<uint64_t> path_to(uint64_t number) {
  std::vector<uint64_t> path;
  for (; number > 0; number /= 3) path.insert(path.begin(), number);
  return path;
}

class Loop {
 public:
  Loop(Store& store, uint64_t seed, bool keeps_all, int log)
      : store_(store), random_(seed), keeps_all_(keeps_all), log_(log) {}

  Result<void> turn() {
    const std::vector<uint64_t> path = path_to(1 + random_.below(kTree));
    const size_t present = CAIRN_TRY(read(path));
    CAIRN_TRY(write(path, present));
    if (random_.one_in(4)) CAIRN_TRY(store_.touch(keys_of(path)));
    if (random_.one_in(40)) CAIRN_TRY(store_.sync());
    if (random_.one_in(100)) CAIRN_TRY(store_.gc());
    if (!keeps_all_ && random_.one_in(60))
      CAIRN_TRY(store_.remove(
          keys_of({path.begin() + static_cast<ptrdiff_t>(path.size() / 2), path.end()})));
    return {};
  }

 private:
  static std::vector<RecordKey> keys_of(const std::vector<uint64_t>& path) {
    std::vector<RecordKey> keys;
    for (uint64_t number : path) keys.push_back(numbered(number));
    return keys;
  }

  // How many from the first on are there. What vanishes meanwhile is a miss; all else must be
  // right.
  Result<size_t> read(const std::vector<uint64_t>& path) {
    const std::vector<RecordKey> keys = keys_of(path);
    const size_t there = CAIRN_TRY(store_.longest_prefix(keys));
    for (size_t i = 0; i < there; ++i) {
      const auto found = CAIRN_TRY(store_.find(keys[i]));
      if (!found) return i;
      const auto bytes = store_.read(*found, buffer_);
      if (!bytes && bytes.error().code == Code::NotFound) return i;
      if (!bytes) return tl::unexpected<Error>(bytes.error());
      if (!is_filled_right(keys[i], *bytes) || found->info != info_of(path[i]))
        return fail(Code::Corrupt, "record {} has wrong bytes", path[i]);
    }
    return there;
  }

  Result<void> write(const std::vector<uint64_t>& path, size_t present) {
    std::vector<NewRecord> records;
    // Now and then all of it, although some is there.
    for (size_t i = random_.one_in(3) ? 0 : present; i < path.size(); ++i)
      records.push_back(filled(info_of(path[i])));
    if (records.empty()) return {};
    CAIRN_TRY(store_.write(records));
    for (uint64_t i = path.size() - records.size(); i < path.size(); ++i) {
      const auto number = static_cast<uint32_t>(path[i]);
      if (::write(log_, &number, sizeof(number)) != sizeof(number))
        return fail(Code::Io, "the log cannot be written");
    }
    return {};
  }

  static RecordInfo info_of(uint64_t number) {
    return numbered_info(number, 0, numbered_name(number / 3));
  }

  Store& store_;
  Random random_;
  const bool keeps_all_;
  const int log_;
  AlignedBuffer buffer_;
};

Result<void> work(char** words) {
  const uint64_t max_bytes = std::strtoull(words[3], nullptr, 10);
  const std::chrono::duration<double> seconds(std::atof(words[4]));
  const auto begin = std::chrono::steady_clock::now();
  const auto store = CAIRN_TRY(Store::open(
      words[1], {.max_bytes = max_bytes > 0 ? max_bytes : UINT64_MAX, .segment_bytes = 1 << 20}));
  const int log = ::open(words[5], O_WRONLY | O_CREAT | O_APPEND, 0600);
  Loop loop(*store, std::strtoull(words[2], nullptr, 10), max_bytes == 0, log);
  while (std::chrono::steady_clock::now() - begin < seconds) CAIRN_TRY(loop.turn());
  return {};
}

}  // namespace
}  // namespace cairn::testing

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const auto worked = cairn::testing::work(argv);
  if (!worked) std::fprintf(stderr, "store_loop: %s\n", worked.error().message.c_str());
  return worked ? 0 : 1;
}
