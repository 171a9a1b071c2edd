// Multi-head latent attention: what a position remembers is one latent, from which every head's key
// and value are made, and one rotary key that all heads share.
//
// It runs in absorbed form: a head's query goes through the head's up-projection of keys, so that
// it meets latents as they are, and the sum of latents goes through its up-projection of values.
// Keys and values themselves are never made.
//
// With a lightning indexer (state/sparse.h) a query attends to the positions that its layer's
// indexer chose, or, in layers without one, to those that the last layer before with one chose.
#ifndef CAIRN_MODELS_LATENT_ATTENTION_H_
#define CAIRN_MODELS_LATENT_ATTENTION_H_

#include <optional>

#include "cairn/models/network.h"
#include "cairn/models/rotary.h"

namespace cairn {

struct IndexerShape {
  uint32_t heads = 0;
  uint32_t dim = 0;    // of a head
  uint32_t count = 0;  // positions that a query attends to
  float epsilon = 0;   // of the keys' norm
};

struct LatentAttentionShape {
  uint32_t width = 0;  // of the residual stream
  uint32_t heads = 0;
  uint32_t query_rank = 0;  // numbers between the two projections of queries
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;   // of a key, rotated in pairs that lie side by side
  uint32_t plain_dim = 0;  // of a head's key, before the rotated ones
  uint32_t value_dim = 0;  // of a head
  Pos context = 0;         // positions
  float epsilon = 0;       // of the norms
  Rotary rotary;
  std::optional<IndexerShape> indexer;
};

// A layer's weights, in ggml's order.
struct LatentAttention {
  struct Indexer {
    ggml_tensor *query, *key, *key_norm, *key_bias, *weights;
  };
  ggml_tensor *query_down, *query_norm, *query_up;
  ggml_tensor *down, *latent_norm;  // to [latent, rope]
  ggml_tensor* key_up;              // [plain, latent, heads]
  ggml_tensor* value_up;            // [latent, value, heads]
  ggml_tensor* output;
  std::optional<Indexer> indexer;
  ContextPtr split;  // holds the up-projections, where the file has them as one matrix
};

// From the keys "<architecture>.attention.q_lora_rank", ... BadInput names what does not fit.
Result<LatentAttentionShape> read_latent_attention_shape(const Metadata& data,
                                                         const std::string& architecture);

enum class HasIndexer { no, yes };
Result<LatentAttention> read_latent_attention(Weights& weights,
                                              const LatentAttentionShape& shape,
                                              uint32_t layer,
                                              HasIndexer has_indexer);

// The slot that such a layer writes.
SlotSpec latent_slot(const LatentAttentionShape& shape, HasIndexer has_indexer);

// Which rows leave a layer. After the last one only the wanted ones are needed.
enum class Rows { all, wanted };

// Writes the slot and adds what the layer's attention makes of x, f32 [width, rows], to `residual`.
// `chosen` is null or the choice of the layer before, and becomes this one's. Null when no row
// leaves.
ggml_tensor* attend_latents(GraphBuilder& builder,
                            const LatentAttentionShape& shape,
                            const LatentAttention& weights,
                            SlotId slot,
                            ggml_tensor* x,
                            ggml_tensor* residual,
                            Rows rows,
                            ggml_tensor*& chosen);

}  // namespace cairn

#endif  // CAIRN_MODELS_LATENT_ATTENTION_H_
