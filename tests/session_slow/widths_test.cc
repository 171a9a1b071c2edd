// Every encoding at every width and length; tests/session takes a few.
#include "tests/support/widths.h"

namespace cairn::testing {
namespace {

TEST(EveryWidth, AgreesWithDoublePrecisionAndScalarBitsInEveryEncoding) {
  for (const Encoding* encoding : builtin().encodings)
    for (const std::string_view sample : encoding->samples) expect_every_width(sample);
  for (const char* form : {"f16-keep64", "bf16-after300", "affine8-keep100-after1002"})
    expect_every_width(form);
}

}  // namespace
}  // namespace cairn::testing
