// The self-test. An operation is a graph over columns of f32 numbers; column c always gets the same
// input, whatever batch it stands in. Every column is computed alone on one thread, which is the
// reference, and then in batches of several sizes on one to three threads, and compared bit for
// bit.
#include "cairn/models/arithmetic.h"

#include <ggml-cpu.h>

#include <array>
#include <cstring>
#include <functional>

#include "cairn/models/executor.h"
#include "cairn/models/gelu.h"

namespace cairn {
namespace {

constexpr int64_t kWidth = 512;  // numbers of a column: two blocks of the widest weight types
constexpr int64_t kRows = 72;    // of a weight matrix
constexpr int64_t kExperts = 4;
constexpr int64_t kColumns = 300;
constexpr std::array<int64_t, 9> kBatches = {2, 3, 4, 7, 8, 16, 33, 64, 300};
constexpr std::array<uint32_t, 3> kThreads = {1, 2, 3};
constexpr size_t kArenaBytes = size_t{32} << 20;

// Numbers in [-1, 1), the same on every machine.
std::vector<float> numbers(uint64_t seed, size_t count) {
  std::vector<float> out(count);
  for (float& x : out) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
  }
  return out;
}

// What a graph of this test may use: columns [first, first + count).
struct Bench {
  ggml_context* context;
  ggml_tensor* columns;    // f32 [kWidth, count]
  ggml_tensor* positions;  // i32 [count]
  ggml_tensor* choices;    // i32 [1, count], below kExperts
  ggml_tensor* weight;     // [kWidth, kRows * kExperts] of the type at hand

  ggml_tensor* heads() const {
    return ggml_reshape_3d(context, columns, 64, kWidth / 64, columns->ne[1]);
  }
  ggml_tensor* rope(int mode) const {
    return ggml_rope_ext(context, heads(), positions, nullptr, 64, mode, 4096, 1e5f, 1, 0, 1, 32,
                         1);
  }
};

struct Operation {
  std::string name;
  ggml_tensor* (*build)(const Bench& bench);
};

ggml_tensor* multiply(const Bench& b) { return ggml_mul_mat(b.context, b.weight, b.columns); }

ggml_tensor* multiply_by_expert(const Bench& b) {
  ggml_tensor* experts = ggml_view_3d(b.context, b.weight, kWidth, kRows, kExperts, b.weight->nb[1],
                                      b.weight->nb[1] * kRows, 0);
  ggml_tensor* columns = ggml_reshape_3d(b.context, b.columns, kWidth, 1, b.columns->ne[1]);
  return ggml_mul_mat_id(b.context, experts, columns, b.choices);
}

// Every head of a column by a matrix of its own, as latent attention does.
ggml_tensor* multiply_by_head(const Bench& b) {
  constexpr int64_t kHeads = 2, kHeadWidth = kWidth / kHeads;
  const size_t row_bytes = ggml_row_size(b.weight->type, kHeadWidth);
  ggml_tensor* matrices =
      ggml_view_3d(b.context, b.weight, kHeadWidth, kRows, kHeads, row_bytes, row_bytes * kRows, 0);
  ggml_tensor* heads = ggml_reshape_3d(b.context, b.columns, kHeadWidth, kHeads, b.columns->ne[1]);
  ggml_tensor* product =
      ggml_mul_mat(b.context, matrices, ggml_permute(b.context, heads, 0, 2, 1, 3));
  return ggml_cont(b.context, ggml_permute(b.context, product, 0, 2, 1, 3));
}

ggml_tensor* pick_rows(const Bench& b) {
  return ggml_get_rows(b.context, b.weight,
                       ggml_reshape_1d(b.context, b.choices, b.choices->ne[1]));
}

const std::array kWeightOperations = {
    Operation{"mul_mat", multiply},
    Operation{"mul_mat by head", multiply_by_head},
    Operation{"mul_mat_id", multiply_by_expert},
    Operation{"get_rows", pick_rows},
};

const std::array kPlainOperations = {
    Operation{"rms_norm",
              [](const Bench& b) { return ggml_rms_norm(b.context, b.columns, 1e-5f); }},
    Operation{"norm", [](const Bench& b) { return ggml_norm(b.context, b.columns, 1e-6f); }},
    Operation{"add", [](const Bench& b) { return ggml_add(b.context, b.columns, b.columns); }},
    Operation{"swiglu",
              [](const Bench& b) { return ggml_swiglu_split(b.context, b.columns, b.columns); }},
    Operation{"swiglu of halves", [](const Bench& b) { return ggml_swiglu(b.context, b.columns); }},
    Operation{"gelu gate",
              [](const Bench& b) { return gelu_gate(b.context, b.columns, b.columns); }},
    Operation{"scale", [](const Bench& b) { return ggml_scale(b.context, b.columns, 0.3f); }},
    Operation{"sigmoid", [](const Bench& b) { return ggml_sigmoid(b.context, b.columns); }},
    Operation{"rope (adjacent pairs)",
              [](const Bench& b) { return b.rope(GGML_ROPE_TYPE_NORMAL); }},
    Operation{"rope (halves)", [](const Bench& b) { return b.rope(GGML_ROPE_TYPE_NEOX); }},
};

// The weight matrix of all experts, encoded.
std::vector<uint8_t> make_weight(ggml_type type) {
  const std::vector<float> plain = numbers(1, kWidth * kRows * kExperts);
  std::vector<uint8_t> encoded(ggml_row_size(type, kWidth) * kRows * kExperts);
  ggml_quantize_chunk(type, plain.data(), encoded.data(), 0, kRows * kExperts, kWidth, nullptr);
  return encoded;
}

class SelfTest {
 public:
  Result<void> start() {
    for (const uint32_t threads : kThreads)
      executors_.push_back(CAIRN_TRY(Executor::make(threads)));
    return {};
  }

  void use_weight(ggml_type type) {
    type_ = type;
    weight_ = make_weight(type);
  }

  // Every column in every batch against itself alone.
  Result<void> verify(const Operation& operation, std::string_view subject) {
    std::vector<float> alone;
    for (int64_t column = 0; column < kColumns; ++column) {
      const std::vector<float> one = CAIRN_TRY(run(operation, column, 1, *executors_.front()));
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (const auto& executor : executors_)
      for (const int64_t batch : kBatches) {
        const std::vector<float> together = CAIRN_TRY(run(operation, 0, batch, *executor));
        if (std::memcmp(together.data(), alone.data(), together.size() * sizeof(float)) != 0)
          return fail(Code::Unsupported,
                      "{}: {} {}: a column's numbers change in a batch of {} on {} threads, "
                      "expected the same bits as alone",
                      arithmetic_name(Expand::no), operation.name, subject, batch,
                      executor->threads());
        report_.products += static_cast<uint64_t>(batch);
      }
    return {};
  }

  ArithmeticReport& report() { return report_; }

 private:
  Result<std::vector<float>> run(const Operation& operation,
                                 int64_t first,
                                 int64_t count,
                                 Executor& executor) {
    const ContextPtr context(
        ggml_init({.mem_size = arena_.size(), .mem_buffer = arena_.data(), .no_alloc = false}));
    const Bench bench = make_bench(context.get(), first, count);
    ggml_tensor* out = operation.build(bench);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 16, false);
    ggml_build_forward_expand(graph, out);
    CAIRN_TRY(executor.run(graph, executor.plan(graph)));
    const auto* data = static_cast<const float*>(out->data);
    return std::vector<float>(data, data + ggml_nelements(out));
  }

  Bench make_bench(ggml_context* context, int64_t first, int64_t count) {
    Bench bench{.context = context,
                .columns = ggml_new_tensor_2d(context, GGML_TYPE_F32, kWidth, count),
                .positions = ggml_new_tensor_1d(context, GGML_TYPE_I32, count),
                .choices = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, count),
                .weight = ggml_new_tensor_2d(context, type_, kWidth, kRows * kExperts)};
    std::memcpy(bench.columns->data, columns_.data() + first * kWidth, ggml_nbytes(bench.columns));
    bench.weight->data = weight_.data();
    for (int64_t i = 0; i < count; ++i) {
      static_cast<int32_t*>(bench.positions->data)[i] = static_cast<int32_t>(17 * (first + i));
      static_cast<int32_t*>(bench.choices->data)[i] = static_cast<int32_t>((first + i) % kExperts);
    }
    return bench;
  }

  std::vector<std::unique_ptr<Executor>> executors_;  // as kThreads; the first has one thread
  std::vector<std::byte> arena_ = std::vector<std::byte>(kArenaBytes);
  std::vector<float> columns_ = numbers(2, kColumns* kWidth);
  ggml_type type_ = GGML_TYPE_F32;
  std::vector<uint8_t> weight_ = make_weight(GGML_TYPE_F32);
  ArithmeticReport report_;
};

// What decides which of ggml's kernels run.
struct Feature {
  std::string_view name;
  int (*is_used)();
};

constexpr std::array kFeatures = {
    Feature{"avx2", ggml_cpu_has_avx2},
    Feature{"fma", ggml_cpu_has_fma},
    Feature{"f16c", ggml_cpu_has_f16c},
    Feature{"avx_vnni", ggml_cpu_has_avx_vnni},
    Feature{"avx512", ggml_cpu_has_avx512},
    Feature{"avx512_vnni", ggml_cpu_has_avx512_vnni},
    Feature{"avx512_bf16", ggml_cpu_has_avx512_bf16},
    Feature{"amx_int8", ggml_cpu_has_amx_int8},
    Feature{"neon", ggml_cpu_has_neon},
    Feature{"dotprod", ggml_cpu_has_dotprod},
    Feature{"i8mm", ggml_cpu_has_matmul_int8},
    Feature{"sve", ggml_cpu_has_sve},
    Feature{"sme", ggml_cpu_has_sme},
    Feature{"llamafile", ggml_cpu_has_llamafile},
};

}  // namespace

std::string arithmetic_name(Expand expand) {
  std::string name = fmt::format("ggml-{}", ggml_version());
  for (const Feature& feature : kFeatures)
    if (feature.is_used() != 0) name += fmt::format("+{}", feature.name);
  return name + (expand == Expand::f32 ? "/expanded" : "/quantized");
}

std::vector<ggml_type> weight_types() {
  return {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0,   GGML_TYPE_Q4_1,
          GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K,   GGML_TYPE_Q3_K,
          GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS};
}

Result<ArithmeticReport> verify_arithmetic(std::span<const ggml_type> types) {
  SelfTest test;
  CAIRN_TRY(test.start());
  for (const Operation& operation : kPlainOperations) CAIRN_TRY(test.verify(operation, "of f32"));
  for (const ggml_type type : types) {
    test.use_weight(type);
    for (const Operation& operation : kWeightOperations)
      CAIRN_TRY(test.verify(operation, fmt::format("of {}", ggml_type_name(type))));
    ++test.report().types;
  }
  return test.report();
}

}  // namespace cairn
