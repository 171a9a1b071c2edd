#include "cairn/encodings/encoding.h"

namespace cairn {

Result<Codec> make_codec(const Encoding& encoding, const Params& params, uint32_t width) {
  Geometry geometry = CAIRN_TRY(encoding.geometry(params, width));
  return Codec{&encoding, params, width, std::move(geometry)};
}

}  // namespace cairn
