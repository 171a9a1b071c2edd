// The file of --state: what it holds, what of it a text can go on from, and when it may be
// replaced.
//
// A conversation is never lost to a command that did not say so: a text that shares less than half
// of what is saved is refused, and a file that is no checkpoint is never replaced.
#ifndef CAIRN_APPS_CLI_STATE_FILE_H_
#define CAIRN_APPS_CLI_STATE_FILE_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/engine/snapshot.h"
#include "cairn/runtime/generate.h"

namespace cairn::cli {

// What a text is to what the file holds.
enum class Meaning {
  match,    // the whole conversation: the prefix that both share is reused
  go_on,    // its next part
  replace,  // as match, and the file may be replaced whatever it holds
};

struct StateFile {
  std::string path;  // empty: nothing is kept
  Meaning meaning = Meaning::match;
};

// NotFound or Io: nothing can be saved there. Asked before hours of work, not after.
Result<void> check_writable(const std::string& path);

// What the file says it holds; none: no file, or one that may be replaced and is of no use.
Result<std::optional<CheckpointInfo>> look_into(const StateFile& file);

// The scheme of a run. `kv` is what the user asked for; empty: the file's, and f16 where there is
// none. Mismatch: the file's is another one.
Result<Scheme> choose_scheme(const std::string& kv,
                             const StateFile& file,
                             const std::optional<CheckpointInfo>& info);

struct Held {
  Conversation conversation;
  std::string warning;  // to show; empty: none
};

// What the file holds, in the session; empty without a file. `threads` read it.
Result<Held> load_state(Session& session,
                        const StateFile& file,
                        const std::optional<CheckpointInfo>& info,
                        uint32_t threads);

// Makes `tokens` the conversation's, and cuts its state to the greatest position where both agree
// and every slot can go on. BadInput, and nothing has changed: more than half of what is held would
// be lost, and the file's meaning does not allow it.
Result<void> match_tokens(Session& session,
                          Conversation& conversation,
                          std::vector<int32_t> tokens,
                          const StateFile& file);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_STATE_FILE_H_
