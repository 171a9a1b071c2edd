// What a conversation of 8,000 positions costs to keep: loading its file with verification against
// raw direct reads of the same file, forking it, and its live bytes against its records. The shape
// is SmolLM2's (30 layers, 3 heads of 64), the state f16.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "bench/rows.h"
#include "cairn/engine/snapshot.h"

namespace cairn::bench {
namespace {

constexpr Pos kPositions = 8000;
constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

ModelSpec spec() {
  return {.identity = sha256("bench"),
          .slots = std::vector(30, attention({.heads = 3, .head_dim = 64}))};
}

SeqId fill(Session& session) {
  std::vector<float> numbers(kPositions * 3 * 64);
  uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525 + 1013904223;
    number = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-30f;
  }
  const SeqId seq = session.start();
  Step step = session.plan({{seq, kPositions}}).value();
  for (SlotId slot : session.slots()) {
    step.write(slot, kKey, numbers.data());
    step.write(slot, kValue, numbers.data());
  }
  step.commit();
  return seq;
}

void drop_from_page_cache(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  ::fdatasync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

// The whole file by direct reads of 1 MiB, on as many threads as the loader has.
double read_raw(const std::string& path, uint32_t threads) {
  return seconds_of([&] {
    auto file = posix_fs().open_read(path, Access::direct).value();
    const uint64_t bytes = file->size().value();
    const uint64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
    std::atomic<uint64_t> next{0};
    std::vector<std::jthread> readers;
    for (uint32_t i = 0; i < threads; ++i)
      readers.emplace_back([&] {
        auto* buffer = static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, kBlockBytes));
        for (uint64_t block = next++; block < blocks; block = next++)
          (void)file->read_at(block * kBlockBytes, {buffer, kBlockBytes}).value();
        std::free(buffer);
      });
  });
}

Row load_row(Session& session, const std::string& path, int pairs) {
  const uint32_t threads = LoadOptions().threads;
  std::vector<double> ratios, loads, reads;
  const double bytes = static_cast<double>(posix_fs().open_read(path).value()->size().value());
  for (int pair = 0; pair < pairs; ++pair) {
    drop_from_page_cache(path);
    reads.push_back(read_raw(path, threads));
    drop_from_page_cache(path);
    loads.push_back(seconds_of([&] { session.drop(load(session, path).value().seq); }));
    ratios.push_back(reads.back() / loads.back());
  }
  return {.id = "state/load/f16",
          .name = "loading a file with verification over raw direct reads of it, cold",
          .ratio = median(ratios),
          .better = "higher",
          .goal = 0.9,
          .floor = 0.8,
          .spread_low = least(ratios),
          .spread_high = most(ratios),
          .detail = {{"file_bytes", bytes},
                     {"load_gb_per_s", bytes / median(loads) / 1e9},
                     {"raw_gb_per_s", bytes / median(reads) / 1e9},
                     {"threads", threads}}};
}

Row fork_row(Session& session, SeqId seq) {
  std::vector<double> micros;
  for (int i = 0; i < 101; ++i) {
    SeqId copy;
    micros.push_back(1e6 * seconds_of([&] { copy = session.fork(seq); }));
    session.drop(copy);
  }
  return {.id = "state/fork/8k",
          .name = "microseconds of a fork over 50",
          .ratio = median(micros) / 50,
          .better = "lower",
          .goal = 0.2,
          .floor = 1,
          .spread_low = least(micros) / 50,
          .spread_high = most(micros) / 50,
          .detail = {{"us", median(micros)}, {"positions", static_cast<double>(kPositions)}}};
}

Row bytes_row(const Session& session) {
  const double records = static_cast<double>(kPositions) * 30 * 3 * 64 * 2 * 2;
  const double ratio = static_cast<double>(session.use().live_bytes) / records;
  return {.id = "state/bytes/8k",
          .name = "live bytes over positions times encoded bytes",
          .ratio = ratio,
          .better = "lower",
          .goal = 1.01,
          .floor = 1.03,
          .spread_low = ratio,
          .spread_high = ratio,
          .detail = {{"live_bytes", static_cast<double>(session.use().live_bytes)}}};
}

int run(bool as_json, int pairs) {
  const std::string path = "build/state_bench.cairn";
  Memory memory;
  Session session = open_session(spec(), parse_scheme("f16").value(), memory).value();
  const SeqId seq = fill(session);
  const std::vector<int32_t> tokens(kPositions, 1);
  if (auto saved = save(session, seq, tokens, path); !saved) {
    fmt::print(stderr, "state_bench: {}\n", saved.error().message);
    return 1;
  }
  std::vector<Row> rows = {bytes_row(session), fork_row(session, seq),
                           load_row(session, path, pairs)};
  (void)posix_fs().remove(path);
  if (as_json)
    print_json(rows);
  else
    for (const Row& row : rows) print_row(row);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  bool as_json = false;
  int pairs = 9;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) as_json = true;
    if (std::strcmp(argv[i], "--pairs") == 0 && i + 1 < argc) pairs = std::atoi(argv[++i]);
  }
  return cairn::bench::run(as_json, pairs);
}
