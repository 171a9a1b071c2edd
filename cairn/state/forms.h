// The two forms in which a group's records can lie: exact (f32) and encoded by the scheme.
//
// Which form a position has is a function of the position, the scheme and the sequence's length:
// the first `keep` positions stay exact for good; a sequence shorter than `after` is exact as a
// whole, and all of it but `keep` is encoded by the commit that reaches `after`. keep is a multiple
// of 64, so a page is in one form.
#ifndef CAIRN_STATE_FORMS_H_
#define CAIRN_STATE_FORMS_H_

#include <optional>

#include "cairn/memory/memory.h"
#include "cairn/state/page_layout.h"

namespace cairn {

struct Form {
  PageLayout layout;
  PagePool* pool = nullptr;
};

struct Forms {
  Form encoded;
  std::optional<Form> exact;  // where the scheme has a use for it
  Pos keep = 0;
  Pos after = 0;

  // Positions below this are exact in a sequence of `length` positions.
  Pos exact_end(Pos length) const { return length < after ? UINT64_MAX : keep; }
  const Form& at(Pos position, Pos exact_end) const {
    return position < exact_end ? *exact : encoded;
  }
  uint32_t page_positions() const { return encoded.layout.page_positions; }
};

}  // namespace cairn

#endif  // CAIRN_STATE_FORMS_H_
