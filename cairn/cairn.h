// All of Cairn that a program may build on: memory, sessions and their states, attention, files.
//
// Include this, link the library cairn_engine, and read on in session.h, attend.h and snapshot.h.
// What is not reachable from here may change without notice.
#ifndef CAIRN_CAIRN_H_
#define CAIRN_CAIRN_H_

#include "cairn/core/error.h"
#include "cairn/core/half.h"
#include "cairn/core/hash.h"
#include "cairn/core/ids.h"
#include "cairn/core/numbers.h"
#include "cairn/engine/snapshot.h"
#include "cairn/io/file.h"
#include "cairn/io/memory_fs.h"
#include "cairn/memory/memory.h"
#include "cairn/session/model_spec.h"
#include "cairn/session/padded.h"
#include "cairn/session/scheme.h"
#include "cairn/session/session.h"
#include "cairn/state/attend.h"
#include "cairn/state/registry.h"
#include "cairn/state/sparse.h"
#include "cairn/state/view.h"

#endif  // CAIRN_CAIRN_H_
