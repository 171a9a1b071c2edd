#include "cairn/store/segment.h"

#include <algorithm>
#include <random>
#include <utility>

#include "cairn/core/bytes.h"

namespace cairn {
namespace {

constexpr std::string_view kSuffix = ".segment";
constexpr std::string_view kTemporary = ".new";
constexpr uint64_t kStageBytes = uint64_t{8} << 20;

// Positive where the index keeps it, as a signed number.
uint64_t random_id() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) >> 1;
}

}  // namespace

std::string segment_name(uint64_t id) { return hex(id) + std::string(kSuffix); }

std::optional<uint64_t> parse_segment_name(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  const auto id = parse_hex64(name.substr(0, name.size() - kSuffix.size()));
  return id && *id <= INT64_MAX ? id : std::nullopt;
}

Result<std::vector<uint64_t>> list_segments(FileSystem& fs, const std::string& folder) {
  const std::vector<std::string> names = CAIRN_TRY(fs.list(folder));
  std::vector<uint64_t> ids;
  for (const std::string& name : names) {
    if (const auto id = parse_segment_name(name)) ids.push_back(*id);
    // What a process left that died while it made one.
    if (name.ends_with(kTemporary) &&
        parse_segment_name(std::string_view(name).substr(0, name.size() - kTemporary.size())))
      fs.remove_abandoned(folder + "/" + name);
  }
  return ids;
}

Appender::~Appender() { roll_back(); }

Result<Place> Appender::add(const NewRecord& record) {
  const uint64_t bytes = stored_bytes(record.info);
  CAIRN_TRY(make_room(bytes));
  const Place place{.segment = open_->id, .offset = open_->end + stage().used};
  const std::span<std::byte> out = stage().bytes.subspan(stage().used, bytes);
  const std::span<std::byte> payload = out.subspan(header_bytes(record.info));
  std::ranges::fill(payload.subspan(record.info.payload_bytes), std::byte{0});
  record.fill(payload.first(record.info.payload_bytes));
  put_header(record.info, place, xxh3(payload), out);
  stage().used += bytes;
  return place;
}

// A segment with room behind what is staged, and a stage with room for the record.
Result<void> Appender::make_room(uint64_t bytes) {
  if (open_ && open_->end + stage().used + bytes > open_->room_bytes) {
    CAIRN_TRY(flush());
    full_.push_back(*std::exchange(open_, std::nullopt));
  }
  if (!open_) open_ = CAIRN_TRY(create(bytes));
  if (stage().used > 0 && stage().used + bytes > kStageBytes) CAIRN_TRY(flush());
  if (stage().used + bytes > stage().bytes.size())
    stage().bytes = CAIRN_TRY(stage().buffer.reserve(std::max(bytes, kStageBytes)));
  return {};
}

// Where the disk has no room for a whole one, a smaller one does.
Result<Appender::Segment> Appender::create(uint64_t at_least) {
  Segment segment{.id = random_id(), .room_bytes = std::max(at_least, segment_bytes_)};
  segment.path = folder_ + "/" + segment_name(segment.id);
  const std::string temporary = segment.path + std::string(kTemporary);
  segment.file = CAIRN_TRY(fs_.create(temporary, Access::direct));
  Result<void> made = segment.file->allocate(0, segment.room_bytes);
  while (!made && made.error().code == Code::NoSpace && segment.room_bytes > at_least) {
    segment.room_bytes = std::max(at_least, round_up(segment.room_bytes / 2, kRecordAlignment));
    made = segment.file->allocate(0, segment.room_bytes);
  }
  if (!made && made.error().code == Code::Unsupported) made = {};
  if (made) made = fs_.rename(temporary, segment.path);
  if (!made) {
    segment.file.reset();
    fs_.remove_abandoned(temporary);
    return tl::unexpected<Error>(std::move(made.error()));
  }
  if (made = fs_.sync_folder(folder_); !made) {
    finish(segment);
    return tl::unexpected<Error>(std::move(made.error()));
  }
  return segment;
}

// While the disk takes some stages the next is filled.
Result<void> Appender::flush() {
  if (stage().used == 0) return {};
  const uint64_t offset = open_->end;
  open_->end += stage().used;
  stage().writing = std::async(std::launch::async, [file = open_->file.get(), offset,
                                                    bytes = stage().bytes.first(stage().used)] {
    return file->write_at(offset, bytes);
  });
  stage_ = (stage_ + 1) % kStages;
  stage().used = 0;
  return stage().writing.valid() ? stage().writing.get() : Result<void>();
}

// Of several failures the first one that was handed over is told.
Result<void> Appender::wait_for_disk() {
  Result<void> first;
  for (size_t i = 1; i <= kStages; ++i) {
    Stage& stage = stages_[(stage_ + i) % kStages];
    if (!stage.writing.valid()) continue;
    Result<void> written = stage.writing.get();
    if (first) first = std::move(written);
  }
  return first;
}

Result<void> Appender::sync() {
  CAIRN_TRY(flush());
  CAIRN_TRY(wait_for_disk());
  for (Segment& segment : full_) CAIRN_TRY(segment.file->sync());
  if (open_ && open_->end > open_->kept_end) CAIRN_TRY(open_->file->sync());
  return {};
}

std::vector<uint64_t> Appender::keep() {
  std::vector<uint64_t> closed;
  for (Segment& segment : full_) {
    segment.kept_end = segment.end;
    closed.push_back(segment.id);
    finish(segment);
  }
  full_.clear();
  if (open_) open_->kept_end = open_->end;
  return closed;
}

void Appender::roll_back() {
  (void)wait_for_disk();
  for (Stage& stage : stages_) stage.used = 0;
  for (Segment& segment : full_) finish(segment);
  full_.clear();
  (void)close();
}

std::optional<uint64_t> Appender::close() {
  if (!open_) return std::nullopt;
  finish(*open_);
  const Segment closed = *std::exchange(open_, std::nullopt);
  return closed.kept_end > 0 ? std::optional(closed.id) : std::nullopt;
}

void Appender::finish(Segment& segment) {
  // What cannot be cut is reclaimed later: nobody has the lock then.
  if (segment.kept_end < segment.room_bytes) (void)segment.file->set_size(segment.kept_end);
  segment.file.reset();
  if (segment.kept_end == 0) fs_.remove_abandoned(segment.path);
}

Result<std::span<const std::byte>> SegmentReaders::read(const Place& place,
                                                        uint64_t bytes,
                                                        AlignedBuffer& buffer) {
  std::unique_ptr<File> file = CAIRN_TRY(take(place.segment));
  // A length that is not there must not ask for memory either.
  const uint64_t size = CAIRN_TRY(file->size());
  const uint64_t there = size - std::min(size, place.offset);
  auto read = read_aligned(*file, place.offset, std::min(bytes, there), buffer);
  give(place.segment, std::move(file));
  return read;
}

Result<std::unique_ptr<File>> SegmentReaders::take(uint64_t segment) {
  {
    const std::lock_guard lock(mutex_);
    const auto idle = std::ranges::find(idle_, segment, &Idle::segment);
    if (idle != idle_.end()) {
      std::unique_ptr<File> file = std::move(idle->file);
      idle_.erase(idle);
      return file;
    }
  }
  return fs_.open_read(folder_ + "/" + segment_name(segment), Access::direct);
}

void SegmentReaders::give(uint64_t segment, std::unique_ptr<File> file) {
  std::unique_ptr<File> oldest;  // closed without the lock
  const std::lock_guard lock(mutex_);
  idle_.push_back({.segment = segment, .file = std::move(file)});
  if (idle_.size() <= kMaxIdle) return;
  oldest = std::move(idle_.front().file);
  idle_.erase(idle_.begin());
}

void SegmentReaders::forget_removed() {
  const std::lock_guard lock(mutex_);
  std::erase_if(idle_, [&](const Idle& idle) { return !fs_.exists(idle.file->path()); });
}

Result<void> erase(FileSystem& fs, const std::string& folder, const Place& place, uint64_t bytes) {
  auto file = CAIRN_TRY(fs.open_update(folder + "/" + segment_name(place.segment)));
  const uint64_t size = CAIRN_TRY(file->size());
  if (place.offset >= size || bytes == 0) return {};
  bytes = std::min(bytes, size - place.offset);
  const Result<void> punched = file->punch_hole(place.offset, bytes);
  if (punched || punched.error().code != Code::Unsupported) return punched;
  const std::vector<std::byte> blank(std::min(bytes, kRecordAlignment));
  return file->write_at(place.offset, blank);
}

}  // namespace cairn
