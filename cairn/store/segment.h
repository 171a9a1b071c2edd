// Segments: the files that records lie in.
//
// A segment is named by its id, 16 hexadecimal digits chosen at random, and ".segment". It is made
// under a temporary name, gets all its room, and takes its name while its maker's lock is on it: a
// segment that nobody has locked is closed for good, and nobody but its maker ever adds to it.
// Space is given back by holes, or by removing the file once no row points into it.
#ifndef CAIRN_STORE_SEGMENT_H_
#define CAIRN_STORE_SEGMENT_H_

#include <array>
#include <future>
#include <mutex>

#include "cairn/store/record.h"

namespace cairn {

std::string segment_name(uint64_t id);
std::optional<uint64_t> parse_segment_name(std::string_view name);

// The ids of all that lie in the folder.
Result<std::vector<uint64_t>> list_segments(FileSystem& fs, const std::string& folder);

// Appends records for one writer at a time. What add() took is in the files after sync(), and
// stays only if keep() follows; roll_back() gives its bytes back.
class Appender {
 public:
  Appender(FileSystem& fs, std::string folder, uint64_t segment_bytes)
      : fs_(fs), folder_(std::move(folder)), segment_bytes_(segment_bytes) {}
  ~Appender();
  Appender(const Appender&) = delete;
  Appender& operator=(const Appender&) = delete;

  Result<Place> add(const NewRecord& record);
  Result<void> sync();
  std::vector<uint64_t> keep();  // the ids of the segments that were closed full
  void roll_back();
  // Gives back the room that is left and closes. The id, if records were kept in it.
  std::optional<uint64_t> close();

 private:
  struct Segment {
    uint64_t id = 0;
    std::string path;
    std::unique_ptr<File> file;
    uint64_t room_bytes = 0;
    uint64_t end = 0;       // of what was handed to the file
    uint64_t kept_end = 0;  // of what stays
  };
  // Records on their way to the file, so that it is written in large pieces, and several at once.
  struct Stage {
    AlignedBuffer buffer;
    std::span<std::byte> bytes;
    uint64_t used = 0;
    std::future<Result<void>> writing;
  };
  static constexpr size_t kStages = 4;

  Result<void> make_room(uint64_t bytes);
  Result<Segment> create(uint64_t at_least);
  Stage& stage() { return stages_[stage_]; }
  Result<void> flush();  // hands the stage to the disk, and goes on with the next one
  Result<void> wait_for_disk();
  void finish(Segment& segment);  // cuts behind kept_end, removes an empty one

  FileSystem& fs_;
  const std::string folder_;
  const uint64_t segment_bytes_;
  std::optional<Segment> open_;
  std::vector<Segment> full_;  // of this batch; locked until their rows are there
  std::array<Stage, kStages> stages_;
  size_t stage_ = 0;  // being filled; nothing writes it
};

// Open segments for reading, a file for each reader at a time. Thread-safe.
class SegmentReaders {
 public:
  SegmentReaders(FileSystem& fs, std::string folder) : fs_(fs), folder_(std::move(folder)) {}
  // The bytes [place.offset, + bytes) of the segment, fewer at its end.
  Result<std::span<const std::byte>> read(const Place& place,
                                          uint64_t bytes,
                                          AlignedBuffer& buffer);
  void forget_removed();  // an open file keeps its bytes on the disk

 private:
  static constexpr size_t kMaxIdle = 32;
  struct Idle {
    uint64_t segment;
    std::unique_ptr<File> file;
  };
  Result<std::unique_ptr<File>> take(uint64_t segment);
  void give(uint64_t segment, std::unique_ptr<File> file);

  FileSystem& fs_;
  const std::string folder_;
  std::mutex mutex_;  // guards idle_
  std::vector<Idle> idle_;
};

// Gives the bytes of records back: a hole, or, where the file system has none, a header blanked
// out, so that no rebuild finds the record again.
Result<void> erase(FileSystem& fs, const std::string& folder, const Place& place, uint64_t bytes);

}  // namespace cairn

#endif  // CAIRN_STORE_SEGMENT_H_
