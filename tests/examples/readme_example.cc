#include "cairn/cairn.h"
using namespace cairn;

// keys, values: [tokens, heads, head_dim]; queries, out: [tokens, query heads, head_dim].
Result<Loaded> remember(Session& session,
                        const std::vector<int32_t>& tokens,
                        const float* keys,
                        const float* values,
                        const Queries& queries,
                        const Attended& out) {
  const SeqId chat = session.start();
  Step step = CAIRN_TRY(session.plan({{.seq = chat, .count = tokens.size()}}));  // may fail
  for (const SlotId slot : session.slots()) {
    step.write(slot, kKey, keys);
    step.write(slot, kValue, values);
    attend(step.view(slot), queries, out);  // reads the encoded pages
  }
  step.commit();  // cannot fail

  const SeqId branch = session.fork(chat);  // shares every page
  CAIRN_TRY(session.truncate(branch, tokens.size() / 2));
  CAIRN_TRY(save(session, chat, tokens, "chat.cairn"));  // whole or absent, checksummed
  return load(session, "chat.cairn");                    // the same bits, or why not
}
