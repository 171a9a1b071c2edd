// save_loop PATH SAVES FIRST SECOND: saves the conversations of two seeds to one path, in turns.
#include <cstdio>
#include <cstdlib>

#include "cairn/engine/snapshot.h"
#include "tests/support/conversation.h"

int main(int argc, char** argv) {
  using namespace cairn;
  if (argc != 5) return 2;
  testing::Conversation conversation;
  const int first = std::atoi(argv[3]), second = std::atoi(argv[4]);
  const SeqId seqs[] = {conversation.start(testing::kSaveLoopLength, first),
                        conversation.start(testing::kSaveLoopLength, second)};
  const int seeds[] = {first, second};
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const auto tokens = testing::count_tokens(testing::kSaveLoopLength, seeds[i % 2]);
    if (const auto saved = save(conversation.session(), seqs[i % 2], tokens, argv[1]); !saved) {
      std::fprintf(stderr, "%s\n", saved.error().message.c_str());
      return 1;
    }
  }
}
