#include "apps/cli/state_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/cli/output.h"

namespace cairn::cli {
namespace {

constexpr const char* kDefaultScheme = "f16";

// Errors that say: sound or not, this file is of no use here, and may be replaced when the user
// says so. Not BadInput: whatever that file is, it is not ours.
bool is_replaceable(Code code) {
  return code == Code::Corrupt || code == Code::Mismatch || code == Code::Unsupported;
}

tl::unexpected<Error> with_advice(Error error, std::string_view advice) {
  return tl::unexpected<Error>(Error{error.code, fmt::format("{}; {}", error.message, advice)});
}

tl::unexpected<Error> explain(Error error) {
  switch (error.code) {
    case Code::Mismatch:
      return with_advice(std::move(error),
                         "name the model that made this state, another --state file, or start anew "
                         "with --overwrite");
    case Code::Corrupt:
    case Code::Unsupported:
      return with_advice(std::move(error),
                         "name another --state file or start anew with "
                         "--overwrite");
    case Code::BadInput:
      return with_advice(std::move(error), "it is left alone: name another --state file");
    default:
      return tl::unexpected<Error>(std::move(error));
  }
}

}  // namespace

Result<void> check_writable(const std::string& path) {
  std::error_code unknown;
  const std::string folder = folder_of(path);
  if (!std::filesystem::is_directory(folder, unknown))
    return fail(Code::NotFound, "{}: no such folder, expected one to save --state in", folder);
  if (std::filesystem::is_directory(path, unknown))
    return fail(Code::BadInput, "{}: a folder, expected the name of a file for --state", path);
  if (access(folder.c_str(), W_OK) != 0)
    return fail(Code::Io, "{}: {}; expected a folder where --state can be saved", folder,
                std::strerror(errno));
  return {};
}

Result<std::optional<CheckpointInfo>> look_into(const StateFile& file) {
  if (file.path.empty()) return std::nullopt;
  auto info = inspect(file.path);
  if (info) return std::optional(std::move(*info));
  if (info.error().code == Code::NotFound) return std::nullopt;
  if (file.meaning == Meaning::replace && is_replaceable(info.error().code)) return std::nullopt;
  return explain(std::move(info.error()));
}

Result<Scheme> choose_scheme(const std::string& kv,
                             const StateFile& file,
                             const std::optional<CheckpointInfo>& info) {
  if (!info) return parse_scheme(kv.empty() ? kDefaultScheme : kv);
  if (kv.empty()) return parse_scheme(info->scheme);
  Scheme scheme = CAIRN_TRY(parse_scheme(kv));
  if (print(scheme) == info->scheme || file.meaning == Meaning::replace) return scheme;
  return fail(Code::Mismatch,
              "{}: saved with --kv {}, expected {}; leave out --kv to go on with {}, name another "
              "--state file, or start anew with --overwrite",
              file.path, info->scheme, print(scheme), info->scheme);
}

Result<Held> load_state(Session& session,
                        const StateFile& file,
                        const std::optional<CheckpointInfo>& info,
                        uint32_t threads) {
  if (!info) return Held{.conversation = {.seq = session.start(), .tokens = {}}, .warning = {}};
  auto loaded = load(session, file.path, {.threads = threads});
  if (loaded)
    return Held{.conversation = {.seq = loaded->seq, .tokens = std::move(loaded->tokens)},
                .warning = std::move(loaded->warning)};
  if (file.meaning == Meaning::replace && is_replaceable(loaded.error().code))
    return Held{.conversation = {.seq = session.start(), .tokens = {}}, .warning = {}};
  return explain(std::move(loaded.error()));
}

Result<void> match_tokens(Session& session,
                          Conversation& conversation,
                          std::vector<int32_t> tokens,
                          const StateFile& file) {
  const auto& held = conversation.tokens;
  const size_t shared = static_cast<size_t>(
      std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin());
  const size_t lost = held.size() - shared;
  if (file.meaning == Meaning::match && lost > held.size() / 2)
    return fail(Code::BadInput,
                "{}: holds {} tokens, of which this text shares the first {}; to add the text to "
                "them say --continue, to replace them --overwrite",
                file.path, with_commas(held.size()), with_commas(shared));

  Pos cut = std::min<Pos>(shared, session.length(conversation.seq));
  while (!session.can_truncate(conversation.seq, cut)) --cut;  // 0 always can
  CAIRN_TRY(session.truncate(conversation.seq, cut));
  conversation.tokens = std::move(tokens);
  return {};
}

}  // namespace cairn::cli
