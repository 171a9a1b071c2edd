// The header text begins with its own checksum, at a place that no version will change, so damage
// is told apart from a newer format before anything is parsed:
//
//   {"__metadata__":{"header_checksum":"<16 hex digits>","cairn":"<CheckpointInfo as
//   JSON>","checksums":"<16 hex digits per
//   chunk>"},"<tensor>":{"dtype":"F16","shape":[300,3,64],"data_offsets":[0,115200]},...}
//
// The checksum is that of all data_offset bytes with its digits taken as zeros. Offsets in the text
// count from data_offset, and checksums have a fixed width, so the header's size is known before
// any data is.
#include "cairn/format/layout.h"

#include <algorithm>
#include <bit>

#include "cairn/core/bytes.h"
#include "cairn/format/json_fields.h"
#include "cairn/format/safetensors.h"
#include "cairn/io/file.h"

namespace cairn {
namespace {

constexpr std::string_view kStart = R"({"__metadata__":{"header_checksum":")";
constexpr size_t kHexDigits = 16;
constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr size_t kChecksumAt = kLengthBytes + kStart.size();  // from the file's start
constexpr uint64_t kTensorAlignment = 64;
constexpr uint64_t kPagePositions = 64;  // chunks end where pages do, if they are long enough

const CheckpointPlane& plane_of(const CheckpointInfo& info, const CheckpointTensor& tensor) {
  return info.slots[tensor.slot].families[tensor.family].planes[tensor.plane];
}

// Of two forms the first is the exact one.
bool is_exact(const CheckpointSlot& slot, size_t family) {
  return forms_of(slot) == 2 && family % 2 == 0;
}

std::string name_of(const CheckpointInfo& info, const CheckpointTensor& tensor) {
  if (tensor.slot == CheckpointTensor::kTokens) return "tokens";
  const CheckpointFamily& family = info.slots[tensor.slot].families[tensor.family];
  return fmt::format("slot{}.{}{}.{}", tensor.slot, family.name,
                     is_exact(info.slots[tensor.slot], tensor.family) ? ".exact" : "",
                     family.planes[tensor.plane].name);
}

// Names are parts of tensor names, divided by dots.
bool is_plain_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

// Of the names [0], [step], [2 step], ...
bool has_twin(const auto& named, size_t step = 1) {
  for (size_t i = 0; i < named.size(); i += step)
    for (size_t j = 0; j < i; j += step)
      if (named[i].name == named[j].name) return true;
  return false;
}

// Bytes of one element in whole bytes; 0: none such.
uint64_t element_bytes(const CheckpointPlane& plane) {
  return element_bits(plane.dtype).value_or(0) / 8;
}

Result<void> check_plane(const CheckpointFamily& family, const CheckpointPlane& plane) {
  if (!is_plain_name(plane.name))
    return fail(Code::BadInput, "plane name \"{}\", expected a-z 0-9 - _", plane.name);
  const uint64_t element = element_bytes(plane);
  if (element == 0 || plane.record_bytes % element != 0)
    return fail(Code::BadInput, "plane {}: records of {} bytes of {}", plane.name,
                plane.record_bytes, plane.dtype);
  const auto row_bytes = checked_mul(family.heads, plane.record_bytes);
  if (!row_bytes || *row_bytes > kMaxRowBytes)
    return fail(Code::BadInput, "plane {}: {} heads of {} bytes, expected at most {} in all",
                plane.name, family.heads, plane.record_bytes, kMaxRowBytes);
  return {};
}

// Few families and planes exist; more would make the search for twins slow.
constexpr size_t kMaxNames = 64;

Result<void> check_family(const CheckpointFamily& family) {
  if (!is_plain_name(family.name))
    return fail(Code::BadInput, "family name \"{}\", expected a-z 0-9 - _", family.name);
  if (family.planes.size() > kMaxNames || has_twin(family.planes))
    return fail(Code::BadInput, "family {}: a plane is repeated", family.name);
  for (const CheckpointPlane& plane : family.planes) CAIRN_TRY(check_plane(family, plane));
  return {};
}

// Every family in as many forms as the first, split where the first is, without overlap or hole.
Result<void> check_forms(const CheckpointSlot& slot, Pos length) {
  const size_t forms = forms_of(slot);
  if (slot.families.size() > kMaxNames || slot.families.size() % forms != 0 ||
      has_twin(slot.families, forms))
    return fail(Code::BadInput, "a family is repeated");
  const Pos end = slot.is_fixed ? std::min<Pos>(1, length) : length;
  for (size_t i = 0; i < slot.families.size(); ++i) {
    const CheckpointFamily &family = slot.families[i], &exact = slot.families[i / forms * forms];
    if (family.name != exact.name || family.heads != exact.heads || family.width != exact.width)
      return fail(Code::BadInput, "{} is [{}, {}], expected {} [{}, {}] in both forms", family.name,
                  family.heads, family.width, exact.name, exact.heads, exact.width);
    const Pos split = forms == 1 ? 0 : std::min(slot.families[0].end, end);
    const PositionRun expected =
        forms == 2 && i % 2 == 0 ? PositionRun{0, split} : PositionRun{split, end - split};
    if (family.begin != expected.first || family.end != expected.first + expected.count)
      return fail(Code::BadInput, "{} covers positions {} to {}, expected {} to {}", family.name,
                  family.begin, family.end, expected.first, expected.first + expected.count);
  }
  return {};
}

// A length at which all is encoded wants an exact form of all before.
Result<void> check_encoded_after(const CheckpointSlot& slot, Pos length, Pos encoded_after) {
  if (encoded_after == 0 || slot.is_fixed || slot.families.empty()) return {};
  if (forms_of(slot) != 2 || (length < encoded_after && slot.families[0].end != length))
    return fail(Code::BadInput, "{} positions are not all exact, expected so below {}", length,
                encoded_after);
  return {};
}

Result<void> check_slot(const CheckpointSlot& slot, Pos length, Pos encoded_after) {
  CAIRN_TRY(check_forms(slot, length));
  CAIRN_TRY(check_encoded_after(slot, length, encoded_after));
  if (slot.is_fixed && (slot.window != 0 || slot.sinks != 0 || forms_of(slot) != 1))
    return fail(Code::BadInput, "fixed tensors in {} forms with a window of {}, expected 1 and 0",
                forms_of(slot), slot.window);
  if (slot.first_kept != 0 &&
      (slot.window == 0 || slot.first_kept <= slot.sinks || slot.first_kept > length))
    return fail(Code::BadInput,
                "first kept position {}, expected one from {} to {} of a window of {}",
                slot.first_kept, slot.sinks + 1, length, slot.window);
  if (!holds_window(slot, length))
    return fail(Code::BadInput, "a window lacks positions that a query at {} sees", length);
  for (const CheckpointFamily& family : slot.families) CAIRN_TRY(check_family(family));
  return {};
}

Result<void> check(const CheckpointInfo& info) {
  if (!is_utf8(to_json(info))) return fail(Code::BadInput, "a text is not UTF-8");
  if (info.tokens < info.length)
    return fail(Code::BadInput, "{} token ids, expected one for each of {} positions", info.tokens,
                info.length);
  for (size_t i = 0; i < info.slots.size(); ++i)
    if (auto slot = check_slot(info.slots[i], info.length, info.encoded_after); !slot)
      return fail(slot.error().code, "slot {}: {}", i, slot.error().message);
  return {};
}

uint64_t rows_per_chunk(uint64_t row_bytes) {
  if (row_bytes == 0) return 0;
  const uint64_t rows = std::max<uint64_t>(1, kChunkBytes / row_bytes);
  return rows < kPagePositions ? rows : rows / kPagePositions * kPagePositions;
}

CheckpointTensor make_tensor(uint64_t rows, uint64_t row_bytes) {
  return {.rows = rows, .row_bytes = row_bytes, .chunk_rows = rows_per_chunk(row_bytes)};
}

std::vector<CheckpointTensor> list_tensors(const CheckpointInfo& info) {
  std::vector<CheckpointTensor> tensors = {make_tensor(info.tokens, sizeof(int32_t))};
  for (uint32_t s = 0; s < info.slots.size(); ++s)
    for (uint32_t f = 0; f < info.slots[s].families.size(); ++f) {
      const CheckpointFamily& family = info.slots[s].families[f];
      for (uint32_t p = 0; p < family.planes.size(); ++p) {
        CheckpointTensor& tensor = tensors.emplace_back(make_tensor(
            stored_rows(info.slots[s], family), family.heads * family.planes[p].record_bytes));
        tensor.slot = s;
        tensor.family = f;
        tensor.plane = p;
      }
    }
  return tensors;
}

uint64_t alignment_of(const CheckpointTensor& tensor) {
  const uint64_t bytes = tensor.bytes();
  return bytes == 0 ? kTensorAlignment : std::min(kTensorAlignment, bytes & -bytes);
}

// Files end below 2^63, so that no offset in one overflows.
Result<void> check_bytes(const std::vector<CheckpointTensor>& tensors) {
  uint64_t total = 2 * kMaxHeaderBytes;
  for (const CheckpointTensor& tensor : tensors) {
    const auto bytes = checked_mul(tensor.rows, tensor.row_bytes);
    const auto sum = bytes ? checked_add(total, *bytes) : std::nullopt;
    if (!sum || *sum > INT64_MAX)
      return fail(Code::BadInput, "{} rows of {} bytes are no file", tensor.rows, tensor.row_bytes);
    total = *sum;
  }
  return {};
}

std::string shape_of(const CheckpointInfo& info, const CheckpointTensor& tensor) {
  if (tensor.slot == CheckpointTensor::kTokens) return fmt::format("{}", tensor.rows);
  const CheckpointPlane& plane = plane_of(info, tensor);
  return fmt::format("{},{},{}", tensor.rows, info.slots[tensor.slot].families[tensor.family].heads,
                     plane.record_bytes / element_bytes(plane));
}

std::string_view dtype_of(const CheckpointInfo& info, const CheckpointTensor& tensor) {
  return tensor.slot == CheckpointTensor::kTokens ? std::string_view("I32")
                                                  : plane_of(info, tensor).dtype;
}

// The text up to the checksums' digits, and what follows them.
struct HeaderText {
  std::string before;
  std::string after;
};

HeaderText header_text(const CheckpointInfo& info,
                       const std::vector<CheckpointTensor>& tensors,
                       uint64_t data_offset) {
  HeaderText text;
  text.before = kStart;
  text.before.append(kHexDigits, '0');
  text.before += R"(","cairn":)";
  append_json_string(text.before, to_json(info));
  text.before += R"(,"checksums":")";
  text.after = R"("})";
  for (const CheckpointTensor& tensor : tensors) {
    const uint64_t begin = tensor.begin - data_offset;
    text.after += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                              name_of(info, tensor), dtype_of(info, tensor), shape_of(info, tensor),
                              begin, begin + tensor.bytes());
  }
  text.after += '}';
  return text;
}

// Lets the tensors follow each other from byte 0, and numbers the chunks.
uint64_t place(CheckpointLayout& layout) {
  std::ranges::stable_sort(layout.tensors, std::greater<>(), alignment_of);
  uint64_t end = 0;
  for (CheckpointTensor& tensor : layout.tensors) {
    tensor.begin = end;
    tensor.first_chunk = layout.chunks;
    end += tensor.bytes();
    layout.chunks += tensor.chunks();
  }
  return end;
}

uint64_t header_checksum(std::string_view header) {
  std::string zeroed(header);
  zeroed.replace(kChecksumAt, kHexDigits, kHexDigits, '0');
  return xxh3(zeroed);
}

std::string length_prefix(uint64_t text_bytes) {
  std::string prefix(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) prefix[i] = static_cast<char>(text_bytes >> (8 * i));
  return prefix;
}

Result<void> verify_header_checksum(std::string_view path, std::string_view text) {
  if (!text.starts_with(kStart) || text.size() < kStart.size() + kHexDigits)
    return fail(Code::BadInput, "{}: begins unlike a checkpoint", path);
  const auto stored = parse_hex64(text.substr(kStart.size(), kHexDigits));
  const uint64_t found = header_checksum(length_prefix(text.size()) + std::string(text));
  if (stored != found)
    return fail(Code::Corrupt, "{}: the header's checksum is {}, expected {}", path, hex(found),
                text.substr(kStart.size(), kHexDigits));
  return {};
}

Result<std::string_view> metadata_text(std::string_view path,
                                       const SafetensorsHeader& header,
                                       std::string_view key) {
  const auto entry = header.metadata.find(key);
  if (entry == header.metadata.end())
    return fail(Code::BadInput, "{}: no metadata \"{}\"", path, key);
  return std::string_view(entry->second);
}

Result<CheckpointInfo> parse_info(std::string_view path, std::string_view json) {
  CheckpointInfo info;
  info.format = 0;
  const auto parsed = from_json(json, info);
  if (info.format > kCheckpointFormat)
    return fail(Code::Unsupported, "{}: format version {}, expected {}", path, info.format,
                kCheckpointFormat);
  if (!parsed)
    return fail(Code::BadInput, "{}: the description has {}", path, parsed.error().message);
  if (info.format != kCheckpointFormat)
    return fail(Code::BadInput, "{}: format version {}, expected {}", path, info.format,
                kCheckpointFormat);
  if (info.fingerprint != fingerprint_of(info))
    return fail(Code::Corrupt, "{}: fingerprint {}, expected {}", path, hex(info.fingerprint),
                hex(fingerprint_of(info)));
  return info;
}

Result<std::vector<uint64_t>> parse_checksums(std::string_view path,
                                              std::string_view text,
                                              uint64_t chunks) {
  if (text.size() % kHexDigits != 0 || text.size() / kHexDigits != chunks)
    return fail(Code::BadInput, "{}: {} digits of checksums, expected {} for each of {} chunks",
                path, text.size(), kHexDigits, chunks);
  std::vector<uint64_t> checksums(chunks);
  for (uint64_t i = 0; i < chunks; ++i) {
    const auto checksum = parse_hex64(text.substr(i * kHexDigits, kHexDigits));
    if (!checksum) return fail(Code::BadInput, "{}: checksum {} is not hex", path, i);
    checksums[i] = *checksum;
  }
  return checksums;
}

// Another spelling of the same content: an order, a space, a key too many.
Result<void> expect_one_spelling(std::string_view path,
                                 std::string_view text,
                                 const CheckpointHeader& header) {
  const std::string expected =
      header_bytes(header.info, header.layout, header.checksums).substr(kLengthBytes);
  if (text == expected) return {};
  const size_t at = static_cast<size_t>(std::ranges::mismatch(text, expected).in1 - text.begin());
  return fail(Code::BadInput, "{}: the header differs from the one valid spelling at byte {}", path,
              kLengthBytes + at);
}

}  // namespace

Chunk CheckpointLayout::chunk(uint64_t index) const {
  // The last tensor that begins at or before the chunk; one without chunks shares its number with
  // the next.
  const auto after = std::ranges::upper_bound(tensors, index, {}, &CheckpointTensor::first_chunk);
  const CheckpointTensor& tensor = *(after - 1);
  const uint64_t first_row = (index - tensor.first_chunk) * tensor.chunk_rows;
  const uint64_t rows = std::min(tensor.chunk_rows, tensor.rows - first_row);
  return {.index = index,
          .tensor = static_cast<uint32_t>(&tensor - tensors.data()),
          .first_row = first_row,
          .rows = rows,
          .offset = tensor.begin + first_row * tensor.row_bytes,
          .bytes = rows * tensor.row_bytes};
}

Result<CheckpointLayout> make_layout(const CheckpointInfo& info) {
  CAIRN_TRY(check(info));
  CheckpointLayout layout;
  layout.tensors = list_tensors(info);
  CAIRN_TRY(check_bytes(layout.tensors));
  const uint64_t data_bytes = place(layout);

  const HeaderText text = header_text(info, layout.tensors, 0);
  if (layout.chunks > kMaxHeaderBytes / kHexDigits)
    return fail(Code::BadInput, "{} bytes of data need {} checksums, expected at most {}",
                data_bytes, layout.chunks, kMaxHeaderBytes / kHexDigits);
  const uint64_t text_bytes = text.before.size() + layout.chunks * kHexDigits + text.after.size();
  layout.data_offset = round_up(kLengthBytes + text_bytes, kDirectAlignment);
  if (layout.data_offset > kMaxHeaderBytes)
    return fail(Code::BadInput, "a header of {} bytes, expected at most {}", layout.data_offset,
                kMaxHeaderBytes);
  layout.file_bytes = layout.data_offset + data_bytes;
  for (CheckpointTensor& tensor : layout.tensors) tensor.begin += layout.data_offset;
  return layout;
}

std::string header_bytes(const CheckpointInfo& info,
                         const CheckpointLayout& layout,
                         const std::vector<uint64_t>& checksums) {
  const HeaderText text = header_text(info, layout.tensors, layout.data_offset);
  std::string bytes = length_prefix(layout.data_offset - kLengthBytes);
  bytes.reserve(layout.data_offset);
  bytes += text.before;
  for (uint64_t checksum : checksums) bytes += hex(checksum);
  bytes += text.after;
  bytes.resize(layout.data_offset, ' ');
  bytes.replace(kChecksumAt, kHexDigits, hex(header_checksum(bytes)));
  return bytes;
}

Result<CheckpointHeader> parse_checkpoint(std::string_view path,
                                          std::string_view text,
                                          uint64_t file_bytes) {
  CAIRN_TRY(verify_header_checksum(path, text));
  const SafetensorsHeader file = CAIRN_TRY(parse_safetensors(path, text, file_bytes));
  const std::string_view description = CAIRN_TRY(metadata_text(path, file, "cairn"));
  const std::string_view checksums = CAIRN_TRY(metadata_text(path, file, "checksums"));
  CheckpointHeader header;
  header.info = CAIRN_TRY(parse_info(path, description));
  auto layout = make_layout(header.info);
  if (!layout) return fail(layout.error().code, "{}: {}", path, layout.error().message);
  header.layout = std::move(*layout);
  header.checksums = CAIRN_TRY(parse_checksums(path, checksums, header.layout.chunks));
  CAIRN_TRY(expect_one_spelling(path, text, header));
  return header;
}

std::string describe(const CheckpointInfo& info,
                     const CheckpointLayout& layout,
                     const Chunk& chunk) {
  const CheckpointTensor& tensor = layout.tensors[chunk.tensor];
  if (tensor.slot == CheckpointTensor::kTokens)
    return fmt::format("token ids {}-{}", chunk.first_row, chunk.first_row + chunk.rows - 1);
  const CheckpointFamily& family = info.slots[tensor.slot].families[tensor.family];
  const CheckpointSlot& slot = info.slots[tensor.slot];
  std::string text =
      fmt::format("slot {}, {}{}, {}", tensor.slot, is_exact(slot, tensor.family) ? "exact " : "",
                  family.name, family.planes[tensor.plane].name);
  if (slot.is_fixed) return text;
  text += ", positions";
  std::string_view separator = " ";
  for (const PositionRun& run : positions_of(slot, family, chunk.first_row, chunk.rows)) {
    if (run.count == 0) continue;
    text += fmt::format("{}{}-{}", separator, run.first, run.first + run.count - 1);
    separator = " and ";
  }
  return text;
}

}  // namespace cairn
