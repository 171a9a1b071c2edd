// What keeping a conversation costs: loading its file with verification against raw direct reads of
// the same file, forking it, appending to it, copying what is recurrent, and its live bytes against
// its records. The shape is SmolLM2's (30 layers, 3 heads of 64) where nothing else is said, the
// state f16.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "bench/paged_state.h"
#include "bench/program.h"
#include "bench/random.h"
#include "cairn/engine/snapshot.h"
#include "cairn/state/recurrent.h"

namespace cairn::bench {
namespace {

constexpr Pos kPositions = 8000;
constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

ModelSpec spec(uint32_t layers = 30) {
  return {.identity = sha256("bench"),
          .slots = std::vector(layers, attention({.heads = 3, .head_dim = 64}))};
}

// Appends `count` positions.
void append(Session& session, SeqId seq, Pos count, const float* numbers) {
  Step step = must(session.plan({{seq, count}}));
  for (SlotId slot : session.slots()) {
    step.write(slot, kKey, numbers);
    step.write(slot, kValue, numbers);
  }
  step.commit();
}

SeqId make(Session& session, Pos length) {
  constexpr Pos kRun = 1000;
  const std::vector<float> numbers = Random().numbers(kRun * 3 * 64);
  const SeqId seq = session.start();
  for (Pos done = 0; done < length; done += kRun)
    append(session, seq, std::min(kRun, length - done), numbers.data());
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

Row load_row(const Program& program) {
  const std::string path = "build/state_bench.cairn";
  Memory memory;
  Session session = must(open_session(spec(), must(parse_scheme("f16")), memory));
  const SeqId seq = make(session, kPositions);
  must(save(session, seq, std::vector<int32_t>(kPositions, 1), path));
  session.drop(seq);
  const uint32_t threads = LoadOptions().threads;
  std::vector<double> ratios, loads, reads;
  const double bytes = static_cast<double>(posix_fs().open_read(path).value()->size().value());
  for (int pair = 0; pair < program.pairs(); ++pair) {
    drop_from_page_cache(path);
    reads.push_back(read_raw(path, threads));
    drop_from_page_cache(path);
    loads.push_back(seconds_of([&] { session.drop(load(session, path).value().seq); }));
    ratios.push_back(reads.back() / loads.back());
  }
  must(posix_fs().remove(path));
  return make_row("state/load/f16",
                  "loading a file with verification over raw direct reads of it, cold", ratios,
                  at_least(0.9, 0.8),
                  {{"ms", median(loads) * 1e3},
                   {"file_bytes", bytes},
                   {"load_gb_per_s", bytes / median(loads) / 1e9},
                   {"raw_gb_per_s", bytes / median(reads) / 1e9},
                   {"threads", threads}});
}

std::vector<Row> sequence_rows(const Program&) {
  Memory memory;
  Session session = must(open_session(spec(), must(parse_scheme("f16")), memory));
  const SeqId seq = make(session, kPositions);
  std::vector<double> ratios;
  for (int i = 0; i < 101; ++i) {
    SeqId copy;
    ratios.push_back(1e6 * seconds_of([&] { copy = session.fork(seq); }) / 50);
    session.drop(copy);
  }
  const double records = static_cast<double>(kPositions) * 30 * 3 * 64 * 2 * 2;
  const double live = static_cast<double>(session.use().live_bytes);
  return {make_row("state/bytes/8k", "live bytes over positions times encoded bytes",
                   {live / records}, at_most(1.01, 1.03), {{"live_bytes", live}}),
          make_row("state/fork/8k", "microseconds of a fork over 50", ratios, at_most(0.2, 1),
                   {{"us", median(ratios) * 50}, {"positions", static_cast<double>(kPositions)}})};
}

// A step of one position, of a long sequence and of a short one by turns.
Row append_row(const Program& program) {
  constexpr Pos kLong = 131'072, kShort = 1024, kSteps = 256;
  constexpr uint32_t kLayers = 8;  // 128k positions of all layers are 3 GB
  Memory memory;
  Session session = must(open_session(spec(kLayers), must(parse_scheme("f16")), memory));
  const SeqId lengthy = make(session, kLong), brief = make(session, kShort);
  const std::vector<float> numbers = Random().numbers(3 * 64);
  const auto seconds = [&](SeqId seq) {
    const Pos before = session.length(seq);
    const double start = seconds_now();
    for (Pos i = 0; i < kSteps; ++i) append(session, seq, 1, numbers.data());
    const double sum = seconds_now() - start;
    must(session.truncate(seq, before));  // its pages serve again: the system gives no new ones
    return sum / kSteps;
  };
  seconds(lengthy);
  seconds(brief);
  std::vector<double> ratios, at_long, at_short;
  for (int pair = 0; pair < program.pairs(); ++pair) {
    at_long.push_back(seconds(lengthy));
    at_short.push_back(seconds(brief));
    ratios.push_back(at_long.back() / at_short.back());
  }
  return make_row("state/append/128k",
                  "a step's plan, write and commit at 128k positions over those at 1k", ratios,
                  at_most(1.2, 1.2),
                  {{"ms", median(at_long) * 1e3},
                   {"us_at_128k", median(at_long) * 1e6},
                   {"us_at_1k", median(at_short) * 1e6}});
}

// The state of a model with recurrent layers as a file, a store or a tier takes it, against memcpy:
// each thread has a sequence. (A snapshot inside the process copies nothing.)
Row recurrent_row(const Program& program) {
  Threads threads(program.threads());
  const SlotSpec slot = recurrent(
      {{&kConvFamily, 3, 8192}, {&kRecurrentFamily, 32, 128 * 128}});  // Qwen3-Next's layer
  const std::vector<const SlotSpec*> slots(36, &slot);
  const PageLayout layout = make_tensor_layout(slots);
  Memory memory;
  std::vector<PageRef> pages, copies;
  for (uint32_t i = 0; i < threads.count(); ++i) {
    pages.push_back(must(memory.pool(layout.page_bytes).take()));
    copies.push_back(must(memory.pool(layout.page_bytes).take()));
    Random(i).fill({reinterpret_cast<float*>(pages[i].data()), layout.page_bytes / sizeof(float)});
    std::memset(copies[i].data(), 1, layout.page_bytes);
  }
  const double bytes = static_cast<double>(layout.page_bytes) * threads.count();
  std::vector<double> ratios, ours, memcpys;
  for (int pair = 0; pair < program.pairs(); ++pair) {
    memcpys.push_back(seconds_of([&] {
      threads.run(
          [&](uint32_t i) { std::memcpy(copies[i].data(), pages[i].data(), layout.page_bytes); });
    }));
    ours.push_back(seconds_of([&] {
      threads.run([&](uint32_t i) { copy_page(layout, pages[i].data(), copies[i].data()); });
    }));
    ratios.push_back(memcpys.back() / ours.back());
  }
  return make_row("state/copy/recurrent", "time of memcpy / of a copy of recurrent state", ratios,
                  at_least(0.9, 0.8),
                  {{"ms", median(ours) * 1e3},
                   {"bytes", bytes},
                   {"gb_per_s", bytes / median(ours) / 1e9},
                   {"memcpy_gb_per_s", bytes / median(memcpys) / 1e9}});
}

// Conversations of lengths log-uniform in [256, 32768] come and go, about 64 at a time. Pages are
// reserved and given back as ever; nobody looks at what is in them, so none are filled.
Row churn_row(const Program&) {
  constexpr int kOperations = 10'000;
  constexpr size_t kUsual = 64;
  Memory memory;
  Session session = must(open_session(spec(), must(parse_scheme("f16")), memory));
  const double record = 30 * 3 * 64 * 2 * 2;
  const std::vector<Pos> first_kept(session.slots().size(), 0);
  Random random(9);
  std::vector<SeqId> live;
  std::vector<double> ratios;  // after every thousandth operation
  double positions = 0, committed = 0;
  for (int i = 1; i <= kOperations; ++i) {
    if (live.empty() || random.below(2 * kUsual) >= live.size()) {
      const auto length =
          static_cast<Pos>(256 * std::exp2(7 * static_cast<double>(random.bits()) * 0x1p-32));
      live.push_back(must(session.arrive(length, first_kept)).commit());
      positions += static_cast<double>(length);
    } else {
      std::swap(live[random.below(live.size())], live.back());
      positions -= static_cast<double>(session.length(live.back()));
      session.drop(live.back());
      live.pop_back();
    }
    if (i % (kOperations / 10) != 0) continue;
    ratios.push_back(static_cast<double>(memory.use().live_bytes) / (positions * record));
    committed = static_cast<double>(memory.use().committed_bytes) / (positions * record);
  }
  Row row = make_row("state/bytes/churn",
                     "live bytes over positions times encoded bytes, after 10,000 conversations "
                     "that come and go",
                     ratios, at_most(1.03, 1.10),
                     {{"live_sequences", static_cast<double>(live.size())},
                      {"positions", positions},
                      {"committed_over_ideal", committed}});
  row.ratio = ratios.back();
  return row;
}

int run(int count, char** words) {
  Program program(count, words);
  program.add("state/sequence", [&] { return sequence_rows(program); });
  program.add_row("state/load", [&] { return load_row(program); });
  program.add_row("state/append", [&] { return append_row(program); });
  program.add_row("state/recurrent", [&] { return recurrent_row(program); });
  program.add_row("state/churn", [&] { return churn_row(program); });
  return program.run();
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) { return cairn::bench::run(count, words); }
