// What the store costs and saves, each as a ratio within one run: restoring a conversation over raw
// direct reads, writing behind over raw direct writes, decoding with and without writing behind,
// looking a long prompt up among a million spans, what a turn writes, what a hit in RAM copies,
// whether a miss tells one tenant by its time what another has stored.
//
//   store_bench [--json] [--folder DIR] [--model PATH] [--pairs N] [--spans N]
//
// Conversations have the shape of SmolLM2's state (30 layers, 3 heads of 64, f16) and random
// numbers.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "bench/ceilings.h"
#include "bench/rows.h"
#include "cairn/engine/prefix.h"
#ifdef CAIRN_HAS_MODELS
#include "cairn/runtime/recall.h"
#endif

namespace cairn::bench {
namespace {

namespace fs = std::filesystem;

constexpr Pos kPositions = 12032;  // 277 MB
constexpr Pos kEarlierPositions = 2048;
constexpr Pos kTurnPositions = 8000, kTurn = 100;
constexpr uint32_t kPromptSpans = 2048;  // 131,072 tokens
constexpr uint32_t kThreads = 6;

struct Options {
  bool is_json = false;
  std::string folder = "build/store_bench";
  std::string model = "models/smollm2.gguf";
  int pairs = 9;
  uint64_t spans = 1'000'000;
};

template <class T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "store_bench: {}\n", result.error().message);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

double seconds_of(const auto& work) {
  const double begin = seconds_now();
  work();
  return seconds_now() - begin;
}

uint64_t random_state = 1;
uint64_t random_bits() {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return random_state ^ (random_state >> 29);
}

std::vector<int32_t> random_tokens(size_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random_bits() % 49152);
  return tokens;
}

// A process with a store.
struct Host {
  explicit Host(Store* store, std::string secret = {})
      : session(
            must(open_session({.identity = sha256("bench"),
                               .slots = std::vector(30, attention({.heads = 3, .head_dim = 64}))},
                              must(parse_scheme("f16")),
                              memory))),
        tiers(memory, store),
        prefixes(must(
            Prefixes::make(session, tiers, {.secret = std::move(secret), .threads = kThreads}))) {}

  void append(SeqId seq, Pos count) {
    std::vector<float> numbers(count * 3 * 64);
    for (float& number : numbers)
      number = static_cast<float>(static_cast<int32_t>(random_bits() >> 32)) * 0x1p-30F;
    Step step = must(session.plan({{.seq = seq, .count = count}}));
    for (const SlotId slot : session.slots()) {
      step.write(slot, kKey, numbers.data());
      step.write(slot, kValue, numbers.data());
    }
    step.commit();
  }

  void append_up_to(SeqId seq, Pos length) {
    while (session.length(seq) < length)
      append(seq, std::min<Pos>(512, length - session.length(seq)));
  }

  // Pages for a conversation, as a process has them that has served others: the first touch of
  // memory costs what the system asks, not the store.
  void touch_pages(Pos positions) {
    const SeqId seq = session.start();
    append_up_to(seq, positions);
    session.drop(seq);
  }

  // Another conversation, so that the store's buffers have been used.
  void remember(const std::vector<int32_t>& tokens) {
    const SeqId seq = session.start();
    append_up_to(seq, tokens.size() - 1);
    Published published;
    prefixes.publish(session, seq, tokens, published);
    session.drop(seq);
    tiers.flush();
  }

  Memory memory;
  Session session;
  Tiers tiers;
  Prefixes prefixes;
};

void expect_durable(Host& host) {
  const FlushVerdict verdict = host.tiers.flush();
  if (verdict.is_durable) return;
  fmt::print(stderr, "store_bench: {}\n", verdict.reason);
  std::exit(1);
}

std::unique_ptr<Store> open(const std::string& folder) {
  return must(Store::open(folder, {.max_bytes = uint64_t{40} << 30}));
}

// --- the disk itself

std::vector<std::string> segments_of(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder + "/segments"))
    paths.push_back(entry.path().string());
  return paths;
}

void drop_from_page_cache(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const int file = ::open(path.c_str(), O_RDONLY);
    ::fdatasync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

// Seconds to read the files by direct reads of `block` bytes.
double read_raw(const std::vector<std::string>& paths, uint64_t block) {
  return seconds_of([&] {
    for (const std::string& path : paths) {
      const auto file = must(posix_fs().open_read(path, Access::direct));
      const uint64_t blocks = must(file->size()) / block;
      std::atomic<uint64_t> next{0};
      std::vector<std::jthread> readers;
      for (uint32_t i = 0; i < kThreads; ++i)
        readers.emplace_back([&] {
          AlignedBuffer buffer;
          const auto bytes = must(buffer.reserve(block));
          for (uint64_t at = next++; at < blocks; at = next++)
            (void)must(file->read_at(at * block, bytes.first(block)));
        });
    }
  });
}

// As many random bytes, which no cache holds.
std::span<const std::byte> random_bytes(AlignedBuffer& buffer, uint64_t bytes) {
  const auto data = must(buffer.reserve(bytes));
  for (size_t i = 0; i + 8 <= data.size(); i += 8) {
    const uint64_t bits = random_bits();
    std::memcpy(data.data() + i, &bits, sizeof(bits));
  }
  return data;
}

// Seconds to write them into a file that has its size, by direct writes, and to sync them.
double write_raw(const std::string& path, std::span<const std::byte> data, uint64_t block) {
  const uint64_t bytes = data.size();
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  if (file < 0 || ::posix_fallocate(file, 0, static_cast<off_t>(bytes)) != 0) return 0;
  const double seconds = seconds_of([&] {
    for (uint64_t at = 0; at + block <= bytes; at += block)
      if (::pwrite(file, data.data() + at, block, static_cast<off_t>(at)) < 0) std::exit(1);
    ::fdatasync(file);
  });
  ::close(file);
  fs::remove(path);
  return seconds;
}

Row make_row(std::string id,
             std::string name,
             const std::vector<double>& ratios,
             const char* better,
             double goal,
             double floor,
             std::map<std::string, double> detail) {
  return {.id = std::move(id),
          .name = std::move(name),
          .ratio = median(ratios),
          .better = better,
          .goal = goal,
          .floor = floor,
          .spread_low = least(ratios),
          .spread_high = most(ratios),
          .detail = std::move(detail),
          .text = {}};
}

// --- rows

// Both directions of one conversation of 277 MB.
std::vector<Row> transfer_rows(const Options& options) {
  std::vector<double> writes, reads, fresh_reads, write_rates, read_rates, raw_writes, raw_reads;
  double bytes = 0;
  AlignedBuffer raw_buffer;
  std::span<const std::byte> data;
  for (int pair = 0; pair < options.pairs; ++pair) {
    const std::string folder = fmt::format("{}/transfer{}", options.folder, pair);
    const std::vector<int32_t> tokens = random_tokens(kPositions + 1);
    {
      const auto store = open(folder);
      Host host(store.get());
      host.remember(random_tokens(kEarlierPositions + 1));
      const SeqId seq = host.session.start();
      host.append_up_to(seq, kPositions);
      bytes = static_cast<double>(host.session.bytes_for(kPositions));
      if (data.empty()) data = random_bytes(raw_buffer, static_cast<uint64_t>(bytes));
      double raw = 1e9;
      for (const uint64_t block : {uint64_t{1} << 20, uint64_t{4} << 20})
        raw = std::min(raw, write_raw(options.folder + "/raw", data, block));
      // As a prefill publishes: 8 spans at a time, the queue writing while the next are computed.
      Published published;
      const double written = seconds_of([&] {
        host.prefixes.publish(host.session, seq, tokens, published);
        expect_durable(host);
      });
      writes.push_back(raw / written);
      write_rates.push_back(bytes / written);
      raw_writes.push_back(bytes / raw);
    }
    const std::vector<std::string> segments = segments_of(folder);
    double raw = 1e9;
    for (const uint64_t block : {uint64_t{1} << 20, uint64_t{4} << 20}) {
      drop_from_page_cache(segments);
      raw = std::min(raw, read_raw(segments, block));
    }
    double file_bytes = 0;
    for (const std::string& path : segments) file_bytes += static_cast<double>(fs::file_size(path));
    const auto restore = [&](bool is_fresh) {
      const auto store = open(folder);
      Host host(store.get());
      if (!is_fresh) host.touch_pages(kPositions);
      drop_from_page_cache(segments);
      Found found;
      const double seconds = seconds_of([&] { found = host.prefixes.find(host.session, tokens); });
      if (found.length != kPositions) {
        fmt::print(stderr, "store_bench: {} positions restored, expected {}\n", found.length,
                   kPositions);
        std::exit(1);
      }
      return bytes / seconds;
    };
    const double raw_rate = file_bytes / raw;
    read_rates.push_back(restore(false));
    reads.push_back(read_rates.back() / raw_rate);
    fresh_reads.push_back(restore(true) / raw_rate);
    raw_reads.push_back(file_bytes / raw);
    fs::remove_all(folder);
  }
  return {
      make_row("store/restore", "restoring, verification and placement included, over raw reads",
               reads, "higher", 0.90, 0.75,
               {{"bytes", bytes},
                {"gb_per_s", median(read_rates) / 1e9},
                {"raw_gb_per_s", median(raw_reads) / 1e9},
                {"ratio_to_fresh_memory", median(fresh_reads)},
                {"threads", kThreads}}),
      make_row("store/write_behind", "publishing until it is durable over raw writes", writes,
               "higher", 0.85, 0.65,
               {{"bytes", bytes},
                {"gb_per_s", median(write_rates) / 1e9},
                {"raw_gb_per_s", median(raw_writes) / 1e9}})};
}

std::vector<Row> turn_rows(const Options& options) {
  const std::string folder = options.folder + "/turn";
  const auto store = open(folder);
  Host host(store.get());
  const std::vector<int32_t> tokens = random_tokens(kTurnPositions + kTurn + 1);
  const SeqId seq = host.session.start();
  Published published;
  host.append(seq, kTurnPositions);
  host.prefixes.mark(host.session, seq, tokens, published);
  expect_durable(host);
  const uint64_t before = must(store->use()).bytes;
  host.append(seq, kTurn);
  host.prefixes.mark(host.session, seq, tokens, published);
  expect_durable(host);
  // The older mark was removed meanwhile.
  const Pos old_tail = kTurnPositions % 64, new_tail = (kTurnPositions + kTurn) % 64;
  const double position = static_cast<double>(host.session.bytes_for(64)) / 64;
  const double spans = static_cast<double>((kTurnPositions + kTurn) / 64 - kTurnPositions / 64);
  const double expected = position * (64 * spans + static_cast<double>(new_tail));
  const double written = static_cast<double>(must(store->use()).bytes - before) +
                         position * static_cast<double>(old_tail);
  const double ratio = written / expected;

  const uint64_t pages = host.memory.use().live_pages;
  const Found found = host.prefixes.find(host.session, tokens);
  const double copied = static_cast<double>(host.memory.use().live_pages - pages);
  fs::remove_all(folder);
  return {make_row("store/turn", "bytes that a turn of 100 tokens writes over those it adds",
                   {ratio}, "lower", 1.02, 1.05, {{"bytes", written}, {"spans", spans}}),
          make_row("store/ram_hit", "pages copied by a hit in RAM", {copied}, "lower", 0, 0,
                   {{"positions", static_cast<double>(found.length)}})};
}

// A prompt of 131,072 tokens among a million spans.
std::vector<Row> lookup_rows(const Options& options) {
  const std::string folder = options.folder + "/lookup";
  const auto store = open(folder);
  const Digest root = sha256("root");
  const size_t tokens_per_prompt = size_t{kPromptSpans} * 64;
  std::vector<int32_t> prompt;
  const double filling = seconds_of([&] {
    for (uint64_t made = 0; made < options.spans; made += kPromptSpans) {
      prompt = random_tokens(tokens_per_prompt);
      const Chain chain(root, prompt, 64);
      std::vector<NewRecord> records;
      for (uint32_t i = 0; i < kPromptSpans; ++i)
        records.push_back(
            {.info = {.key = {chain.name(i + 1), 0},
                      .kind = RecordKind::Span,
                      .parent = chain.name(i),
                      .tokens = {prompt.begin() + i * 64, prompt.begin() + (i + 1) * 64},
                      .length = (i + uint64_t{1}) * 64,
                      .payload_bytes = 64},
             .fill = [](std::span<std::byte> out) { std::memset(out.data(), 1, out.size()); }});
      must(store->write(records));
    }
  });
  std::vector<double> hashing, probing;
  for (int i = 0; i < 21; ++i) {
    std::optional<Chain> chain;
    hashing.push_back(1e3 * seconds_of([&] { chain.emplace(root, prompt, 64); }));
    std::vector<RecordKey> keys;
    for (uint32_t k = 0; k < kPromptSpans; ++k) keys.push_back({chain->name(k + 1), 0});
    size_t found = 0;
    probing.push_back(1e3 * seconds_of([&] { found = must(store->longest_prefix(keys)); }));
    if (found != kPromptSpans) std::exit(1);
  }
  const double records = static_cast<double>(must(store->use()).records);
  fs::remove_all(folder);
  const auto over = [](std::vector<double> values, double limit) {
    for (double& value : values) value /= limit;
    return values;
  };
  return {make_row("store/hash_128k", "milliseconds of naming the spans of 131,072 tokens over 1",
                   over(hashing, 1), "lower", 1, 1.5, {{"ms", median(hashing)}}),
          make_row("store/probe_128k", "milliseconds of probing for them, warm, over 2",
                   over(probing, 2), "lower", 1, 2,
                   {{"ms", median(probing)}, {"records", records}, {"filling_s", filling}})};
}

// The probability of such a difference between two samples if they are of one distribution: the
// two-sample Kolmogorov-Smirnov test with Stephens' correction.
double ks_probability(std::vector<double> a, std::vector<double> b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  const double a_count = static_cast<double>(a.size()), b_count = static_cast<double>(b.size());
  double most = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double x = std::min(a[i], b[j]);
    while (i < a.size() && a[i] <= x) ++i;
    while (j < b.size() && b[j] <= x) ++j;
    most = std::max(most,
                    std::abs(static_cast<double>(i) / a_count - static_cast<double>(j) / b_count));
  }
  const double root = std::sqrt(a_count * b_count / (a_count + b_count));
  const double lambda = (root + 0.12 + 0.11 / root) * most;
  double p = 0;
  for (int k = 1; k <= 100; ++k)
    p += (k % 2 != 0 ? 2 : -2) * std::exp(-2.0 * k * k * lambda * lambda);
  return std::clamp(p, 0.0, 1.0);
}

// Whether one tenant can tell by the clock what another has told the store.
Row tenant_row(const Options& options) {
  constexpr size_t kWarmUp = 300, kSamples = 2000;
  const std::string folder = options.folder + "/tenant";
  const auto store = open(folder);
  std::vector<std::vector<int32_t>> theirs, nobodys;
  {
    Host alice(store.get(), "alice");
    while (theirs.size() < kWarmUp + kSamples) {
      theirs.push_back(random_tokens(65));
      nobodys.push_back(random_tokens(65));
      const SeqId seq = alice.session.start();
      alice.append(seq, 64);
      Published published;
      alice.prefixes.publish(alice.session, seq, theirs.back(), published);
      alice.session.drop(seq);
    }
    expect_durable(alice);
  }
  Host bob(store.get(), "bob");
  std::vector<int32_t> prompt;  // one place for all: what is measured is not which tokens are cold
  const auto miss = [&](const std::vector<int32_t>& tokens) {
    prompt = tokens;
    return 1e6 * seconds_of([&] {
             if (bob.prefixes.longest(prompt) != 0) std::exit(1);
           });
  };
  std::vector<double> known, unknown;
  for (size_t i = 0; i < kWarmUp + kSamples; ++i) {
    const bool known_first = random_bits() % 2 == 0;
    const double first = miss((known_first ? theirs : nobodys)[i]);
    const double second = miss((known_first ? nobodys : theirs)[i]);
    if (i < kWarmUp) continue;
    known.push_back(known_first ? first : second);
    unknown.push_back(known_first ? second : first);
  }
  fs::remove_all(folder);
  return make_row("store/tenant",
                  "p that a miss takes as long for another tenant's prompt as for nobody's",
                  {ks_probability(known, unknown)}, "higher", 0.05, 0.01,
                  {{"known_us", median(known)}, {"unknown_us", median(unknown)}});
}

#ifdef CAIRN_HAS_MODELS
Row decode_row(const Options& options) {
  constexpr Pos kPrompt = 256, kTokens = 96;
  const std::string folder = options.folder + "/decode";
  const auto store = open(folder);
  Memory memory;
  const auto model = must(load_model(options.model, {.threads = 2}));
  Session session = must(open_session(model->spec(), must(parse_scheme("f16")), memory));
  Tiers tiers(memory, store.get());
  Prefixes prefixes = must(Prefixes::make(session, tiers));
  const auto decode = [&](bool remembers) {
    Sampler sampler = must(make_sampler({}));
    Conversation conversation{session.start(), random_tokens(kPrompt)};
    Recall recall(prefixes, session, conversation);
    GenerateOptions how{.max_tokens = kTokens};
    if (remembers) {
      (void)recall.begin({.max_tokens = kTokens});
      how.after_step = [&] { recall.after_step(sampler); };
    }
    const Generated result = must(generate(*model, session, conversation, sampler, how));
    if (remembers) recall.end(result.finish);
    tiers.flush();
    session.drop(conversation.seq);
    return result.stats.decode_tokens_per_second();
  };
  decode(true);
  std::vector<double> ratios, with;
  for (int pair = 0; pair < options.pairs; ++pair) {
    // Which comes first takes turns, so that a slowing machine favours neither.
    const double first = decode(pair % 2 == 0), second = decode(pair % 2 != 0);
    with.push_back(pair % 2 == 0 ? first : second);
    ratios.push_back(pair % 2 == 0 ? first / second : second / first);
  }
  fs::remove_all(folder);
  return make_row("store/decode", "tokens per second with writing behind over without", ratios,
                  "higher", 0.99, 0.97, {{"tokens_per_s", median(with)}});
}
#endif

int run(const Options& options) {
  fs::remove_all(options.folder);
  fs::create_directories(options.folder);
  std::vector<Row> rows;
  const auto add = [&](std::vector<Row> more) {
    for (Row& row : more) {
      if (!options.is_json) print_row(row);
      rows.push_back(std::move(row));
    }
  };
  add(transfer_rows(options));
  add(turn_rows(options));
  add({tenant_row(options)});
#ifdef CAIRN_HAS_MODELS
  add({decode_row(options)});
#endif
  add(lookup_rows(options));
  fs::remove_all(options.folder);
  if (options.is_json) print_json(rows);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  cairn::bench::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (word == "--json") {
      options.is_json = true;
    } else if (word == "--folder") {
      options.folder = value();
    } else if (word == "--model") {
      options.model = value();
    } else if (word == "--pairs") {
      options.pairs = std::max(1, std::atoi(value().c_str()));
    } else if (word == "--spans") {
      options.spans = std::strtoull(value().c_str(), nullptr, 10);
    } else {
      fmt::print(stderr, "store_bench: {}: not an option\n", word);
      return 2;
    }
  }
  return cairn::bench::run(options);
}
