// What a session would write into a file about itself, and whether a file's description fits it.
#ifndef CAIRN_ENGINE_DESCRIPTION_H_
#define CAIRN_ENGINE_DESCRIPTION_H_

#include <string>

#include "cairn/format/checkpoint.h"
#include "cairn/session/session.h"

namespace cairn {

// As it is for a sequence of `length` positions, but for the sequence itself: tokens, derived and
// the slots' first_kept stay empty.
Result<CheckpointInfo> describe_session(const ModelSpec& spec,
                                        const Scheme& scheme,
                                        const Registry& registry,
                                        const std::string& name_space,
                                        Pos length);

// Everything but the arithmetic; `session` is described for the file's length. Unsupported for
// kinds and encodings that the registry does not have, Mismatch for what it has but the session is
// not; "<found>, expected <ours>".
Result<void> check_fit(const CheckpointInfo& file,
                       const CheckpointInfo& session,
                       const Registry& registry);

// What the file says of the model: its names and its slots. Unsupported for kinds and families that
// the registry does not have, BadInput where a kind refuses its slot. The identity may be zero.
Result<ModelSpec> model_of(const CheckpointInfo& file, const Registry& registry);

}  // namespace cairn

#endif  // CAIRN_ENGINE_DESCRIPTION_H_
