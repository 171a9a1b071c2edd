// What every state does: reserve, publish, cut, copy. A session runs the verbs over its states, one
// per group of slots that share a page table.
//
// There are two: Positional (a record per position, paged) and Recurrent (the last state only).
// Both keep what they hold in pages of a PageTable per sequence, so that forks, snapshots and
// adoption are holds on pages for both.
#ifndef CAIRN_STATE_STATE_H_
#define CAIRN_STATE_STATE_H_

#include <memory>
#include <vector>

#include "cairn/state/forms.h"
#include "cairn/state/page_table.h"
#include "cairn/state/retention.h"

namespace cairn {

// A round's commit may keep only a prefix of each run (speculation).
enum class Round { no, yes };

// The pages one run will write, owned until they are published: clearing it is the rollback. Meant
// to be used again, so that reserving allocates nothing once the lists have grown.
struct Reservation {
  std::vector<PageRef> pages;    // they hide the table's pages of the same index, or extend it
  Pos first = 0;                 // page index
  std::vector<PageRef> encoded;  // for the records that publish will re-encode
  PageRef inputs;                // what a recurrent round records

  void clear() {
    pages.clear();
    first = 0;
    encoded.clear();
    inputs = {};
  }
};

// `count` positions after `length`, of which `kept` are published.
struct Growth {
  Pos length = 0;
  Pos count = 0;
  Pos kept = 0;
};

class State {
 public:
  virtual ~State() = default;
  virtual std::unique_ptr<State> clone() const = 0;

  // Reserves what growth.count positions need, into an empty reservation, and gives the table the
  // capacity that publish needs. On NoSpace the reservation may hold a part; else nothing has
  // changed.
  virtual Result<void> reserve(PageTable& table,
                               Growth growth,
                               Round round,
                               Reservation& reservation) const = 0;
  // Takes over what holds the first growth.kept new positions; what is left in the reservation is
  // of no more use. Lets go of what is not retained. Returns the numbers that saturated, should
  // this be the commit that encodes.
  virtual uint64_t publish(PageTable& table,
                           Reservation& reservation,
                           Growth growth) const noexcept = 0;

  virtual bool can_truncate(const PageTable& table, Pos length, Pos to) const = 0;
  virtual void truncate(PageTable& table, Pos length, Pos to) const noexcept = 0;

  // Pages for `length` positions of which those from first_held on (and the sinks) are held: those
  // that `given` has, and new ones to be filled in.
  virtual Result<PageTable> allocate(Pos length, Pos first_held, const PageSource& given) const = 0;

  // How many positions a run after `length` may have.
  virtual Pos max_run(Pos length) const = 0;

  // Bytes of a fresh unshared sequence, however it was built; and a bound for every moment on the
  // way.
  virtual uint64_t bytes_for(Pos tokens) const = 0;
  virtual uint64_t peak_bytes_for(Pos tokens, Pos longest_run) const = 0;

  const Retention& retention() const { return retention_; }
  const Forms& forms() const { return forms_; }

 protected:
  State(Forms forms, Retention retention) : forms_(std::move(forms)), retention_(retention) {}
  State(const State&) = default;

 private:
  Forms forms_;
  Retention retention_;
};

}  // namespace cairn

#endif  // CAIRN_STATE_STATE_H_
