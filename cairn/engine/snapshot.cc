#include "cairn/engine/snapshot.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>

#include "cairn/engine/description.h"
#include "cairn/engine/workers.h"
#include "cairn/format/checkpoint_reader.h"
#include "cairn/format/checkpoint_writer.h"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian, and records are copied as they are");

// --- saving

// first_kept counts from the sinks in a snapshot, and is 0 in a file when nothing is gone.
Result<CheckpointInfo> describe(const Snapshot& snapshot,
                                size_t tokens,
                                const std::string& name_space) {
  CheckpointInfo info = CAIRN_TRY(describe_session(
      snapshot.spec(), snapshot.scheme(), snapshot.registry(), name_space, snapshot.length()));
  info.is_derived = snapshot.is_derived();
  info.tokens = tokens;
  for (uint32_t i = 0; i < info.slots.size(); ++i) {
    const Pos first_kept = snapshot.first_kept(SlotId{i});
    info.slots[i].first_kept = first_kept > info.slots[i].sinks ? first_kept : 0;
  }
  return info;
}

// Records of one plane, for consecutive positions in one form, out of the pages: [count, heads,
// record]. `family_index` is into the slot's spec.
void gather(const View& view,
            size_t family_index,
            const CheckpointTensor& tensor,
            PositionRun run,
            std::byte* out) {
  if (run.count == 0) return;
  const FamilyPlace& family = view.place(view.runs[0], run.first).families[family_index];
  const PlanePlace& plane = family.planes[tensor.plane];
  while (run.count > 0) {
    const Pos in_page = run.first % view.page_positions;
    const Pos count = std::min(run.count, view.page_positions - in_page);
    const std::byte* page = view.runs[0].pages.page(run.first / view.page_positions);
    for (uint32_t head = 0; head < family.heads; ++head)
      copy_out(plane, head, page, static_cast<uint32_t>(in_page), static_cast<uint32_t>(count),
               out + uint64_t{head} * plane.record_bytes, tensor.row_bytes);
    out += count * tensor.row_bytes;
    run.first += count;
    run.count -= count;
  }
}

// --- loading

// Where a file's rows go: token ids into a list, records into the pages of a sequence in the
// making.
class Destination {
 public:
  Destination(const CheckpointReader& reader, const ModelSpec& spec, Session::Arrival& arrival)
      : reader_(reader), spec_(spec), arrival_(arrival), tokens_(reader.info().tokens) {}

  void place(const Chunk& chunk, std::span<const std::byte> bytes) {
    const CheckpointTensor& tensor = reader_.layout().tensors[chunk.tensor];
    if (tensor.slot == CheckpointTensor::kTokens) {
      std::memcpy(tokens_.data() + chunk.first_row, bytes.data(), bytes.size());
      return;
    }
    const CheckpointSlot& slot = reader_.info().slots[tensor.slot];
    const FamilyId family =
        spec_.slots[tensor.slot].families[tensor.family / forms_of(slot)].family->id;
    const std::byte* records = bytes.data();
    for (const PositionRun& run :
         positions_of(slot, slot.families[tensor.family], chunk.first_row, chunk.rows)) {
      if (run.count == 0) continue;
      arrival_.place(SlotId{tensor.slot}, family, tensor.plane, run.first, run.count, records);
      records += run.count * tensor.row_bytes;
    }
  }

  std::vector<int32_t> take_tokens() { return std::move(tokens_); }

 private:
  const CheckpointReader& reader_;
  const ModelSpec& spec_;
  Session::Arrival& arrival_;
  std::vector<int32_t> tokens_;
};

using Visitor = CheckpointReader::Visitor;

// Every chunk of the file once: the sound ones to `sound`, the others to `damaged`, both from
// several threads.
Result<void> read_all(const CheckpointReader& reader,
                      uint32_t threads,
                      const Visitor& sound,
                      const std::function<Result<void>(const std::vector<Chunk>&)>& damaged) {
  std::vector<AlignedBuffer> buffers(std::max(threads, 1u));
  return run_jobs(reader.jobs(), threads, [&](size_t job, uint32_t worker) -> Result<void> {
    const std::vector<Chunk> bad = CAIRN_TRY(reader.read_job(job, buffers[worker], sound));
    return bad.empty() ? Result<void>() : damaged(bad);
  });
}

Result<void> read_all(const CheckpointReader& reader, uint32_t threads, const Visitor& sound) {
  return read_all(reader, threads, sound, [&](const std::vector<Chunk>& bad) -> Result<void> {
    return tl::unexpected<Error>(reader.damage(bad.front()));
  });
}

tl::unexpected<Error> fail_at(const std::string& path, const Error& error) {
  return fail(error.code, "{}: {}", path, error.message);
}

// The arrival counts first_kept from the sinks.
Result<Session::Arrival> arrive(Session& session, const CheckpointInfo& info) {
  std::vector<Pos> first_kept;
  for (const CheckpointSlot& slot : info.slots)
    first_kept.push_back(slot.first_kept == 0 ? std::min(slot.sinks, info.length)
                                              : slot.first_kept);
  return session.arrive(info.length, first_kept);
}

std::string warning_of(const std::string& path,
                       const CheckpointInfo& file,
                       const std::string& arithmetic) {
  if (file.arithmetic != arithmetic)
    return fmt::format(
        "{}: computed by {}, this is {}: what follows may differ in the last bits of its numbers",
        path, file.arithmetic, arithmetic);
  if (file.is_derived)
    return fmt::format(
        "{}: marked derived: re-encoded, imported, or computed in part by another arithmetic",
        path);
  return {};
}

}  // namespace

Result<void> save(const Snapshot& snapshot,
                  std::span<const int32_t> tokens,
                  const std::string& path,
                  const SaveOptions& options) {
  CAIRN_CHECK(tokens.size() >= snapshot.length(),
              "{}: {} tokens, expected one for each of {} positions", path, tokens.size(),
              snapshot.length());
  auto info = describe(snapshot, tokens.size(), options.name_space);
  if (!info) return fail_at(path, info.error());
  const auto fill = [&](const CheckpointTensor& tensor, uint64_t first_row, uint64_t rows,
                        std::span<std::byte> out) -> Result<void> {
    if (tensor.slot == CheckpointTensor::kTokens) {
      std::memcpy(out.data(), tokens.data() + first_row, out.size());
      return {};
    }
    const CheckpointSlot& slot = info->slots[tensor.slot];
    const View view = snapshot.view(SlotId{tensor.slot});
    std::byte* records = out.data();
    for (const PositionRun& run :
         positions_of(slot, slot.families[tensor.family], first_row, rows)) {
      gather(view, tensor.family / forms_of(slot), tensor, run, records);
      records += run.count * tensor.row_bytes;
    }
    return {};
  };
  return write_checkpoint(*options.fs, path, *info, fill);
}

Result<void> save(const Session& session,
                  SeqId seq,
                  std::span<const int32_t> tokens,
                  const std::string& path,
                  const SaveOptions& options) {
  return save(session.snapshot(seq), tokens, path, options);
}

Result<Loaded> load(Session& session, const std::string& path, const LoadOptions& options) {
  const CheckpointReader reader = CAIRN_TRY(CheckpointReader::open(*options.fs, path));
  const CheckpointInfo expected =
      CAIRN_TRY(describe_session(session.spec(), session.scheme(), session.registry(),
                                 options.name_space, reader.info().length));
  if (auto fit = check_fit(reader.info(), expected, session.registry()); !fit)
    return fail_at(path, fit.error());

  auto arrival = arrive(session, reader.info());
  if (!arrival) return fail_at(path, arrival.error());
  Destination destination(reader, session.spec(), *arrival);
  CAIRN_TRY(
      read_all(reader, options.threads, [&](const Chunk& chunk, std::span<const std::byte> bytes) {
        destination.place(chunk, bytes);
      }));

  Loaded loaded;
  loaded.is_derived = reader.info().is_derived || reader.info().arithmetic != expected.arithmetic;
  loaded.warning = warning_of(path, reader.info(), expected.arithmetic);
  loaded.tokens = destination.take_tokens();
  if (loaded.is_derived) arrival->mark_derived();
  loaded.seq = arrival->commit();
  return loaded;
}

Result<CheckpointInfo> inspect(const std::string& path, const ReadOptions& options) {
  const CheckpointReader reader = CAIRN_TRY(CheckpointReader::open(*options.fs, path));
  return reader.info();
}

Result<std::vector<int32_t>> read_tokens(const std::string& path, const ReadOptions& options) {
  const CheckpointReader reader = CAIRN_TRY(CheckpointReader::open(*options.fs, path));
  std::vector<int32_t> tokens(reader.info().tokens);
  const auto is_token = [&](const Chunk& chunk) {
    return reader.layout().tensors[chunk.tensor].slot == CheckpointTensor::kTokens;
  };
  AlignedBuffer buffer;
  for (size_t job = 0; job < reader.jobs(); ++job) {
    if (!reader.any_in_job(job, is_token)) continue;
    const auto keep = [&](const Chunk& chunk, std::span<const std::byte> bytes) {
      if (is_token(chunk)) std::memcpy(tokens.data() + chunk.first_row, bytes.data(), bytes.size());
    };
    for (const Chunk& bad : CAIRN_TRY(reader.read_job(job, buffer, keep)))
      if (is_token(bad)) return tl::unexpected<Error>(reader.damage(bad));
  }
  return tokens;
}

Result<VerifyReport> verify(const std::string& path, const ReadOptions& options) {
  const CheckpointReader reader = CAIRN_TRY(CheckpointReader::open(*options.fs, path));
  std::mutex mutex;
  std::vector<Chunk> damaged;
  const auto keep = [&](const std::vector<Chunk>& bad) -> Result<void> {
    const std::lock_guard lock(mutex);
    damaged.insert(damaged.end(), bad.begin(), bad.end());
    return {};
  };
  CAIRN_TRY(read_all(
      reader, options.threads, [](const Chunk&, std::span<const std::byte>) {}, keep));
  std::ranges::sort(damaged, {}, &Chunk::index);

  VerifyReport report{.info = reader.info(),
                      .file_bytes = reader.layout().file_bytes,
                      .chunks = reader.layout().chunks,
                      .damage = {}};
  for (const Chunk& chunk : damaged)
    report.damage.push_back(describe(reader.info(), reader.layout(), chunk));
  return report;
}

}  // namespace cairn
