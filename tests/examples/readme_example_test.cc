// The README's example is the file beside this one, and it does what it says.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cairn/cairn.h"
#include "tests/support/must.h"
#include "tests/support/random.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/text_file.h"

cairn::Result<cairn::Loaded> remember(cairn::Session& session,
                                      const std::vector<int32_t>& tokens,
                                      const float* keys,
                                      const float* values,
                                      const cairn::Queries& queries,
                                      const cairn::Attended& out);

namespace cairn::testing {
namespace {

TEST(ReadmeExample, IsTheFileThatIsCompiled) {
  const std::string readme = read_text("README.md");
  const std::string begin = "<!-- example: begin -->\n```cpp\n", end = "```\n<!-- example: end -->";
  const size_t first = readme.find(begin), last = readme.find(end);
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(last, std::string::npos);
  EXPECT_EQ(readme.substr(first + begin.size(), last - first - begin.size()),
            read_text("tests/examples/readme_example.cc"));
}

TEST(ReadmeExample, LoadsWhatItSaved) {
  const ModelSpec model{.identity = sha256("an example"),
                        .slots = std::vector(2, attention({.heads = 1, .head_dim = 8}))};
  Memory memory;
  Session session = must(open_session(model, must(parse_scheme("f16")), memory));
  const std::vector<int32_t> tokens{1, 2, 3, 4};
  const std::vector<float> numbers = random_floats(1, 4 * 2 * 8);
  std::vector<float> out(numbers.size());

  ScratchFolder folder;
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto again = remember(session, tokens, numbers.data(), numbers.data() + 32,
                              {.data = numbers.data(), .heads = 2}, {.data = out.data()});
  std::filesystem::current_path(here);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->tokens, tokens);
  EXPECT_EQ(session.length(again->seq), 4u);
}

}  // namespace
}  // namespace cairn::testing
