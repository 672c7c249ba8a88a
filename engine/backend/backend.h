// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a decoder, on one device: what models need and no more. A second backend is another implementation.
//
//   ASSIGN_OR_RETURN(auto qkv_weight, backend.PackMatrix({&q, 1}, Exactness::kHigh));
//   RETURN_IF_ERROR(backend.BeginStep(sequences, streamed));
//   RETURN_IF_ERROR(backend.Embed(*table, ids, *x));
//   RETURN_IF_ERROR(backend.Linear({.in = x.get(), .rows = n, .weight = qkv_weight.get(), .out = qkv.get()}));
//   RETURN_IF_ERROR(backend.RopeAndStoreKv({.layer = 0, .qkv = qkv.get()}));
//   RETURN_IF_ERROR(backend.Attention(0, *qkv, *attended));
//   absl::Status status;
//   backend.EndStep(status).Wait();
//   RETURN_IF_ERROR(status);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/fence.h"
#include "engine/backend/kv_layout.h"
#include "engine/backend/sampling.h"
#include "engine/backend/step.h"
#include "engine/backend/weight_report.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend {

/// How weights lie in memory and what enters a product. kBf16: bf16 weights; activations are rounded to bf16 where the
/// device multiplies bf16, and stay f32 elsewhere. kF32: f32 both. Sums are f32 always, and rounded when they are done where
/// AllocateRounded says so.
enum class Precision { kBf16, kF32 };

/// How exact a product is to be where a device may choose: kHigh for what goes straight into a softmax (queries and keys,
/// logits), where rounding rows weighs most, though these are few of a model's products.
enum class Exactness { kUsual, kHigh };

/// A weight matrix [rows = outputs][cols = inputs] in the backend's own layout. Immutable.
class Matrix {
 public:
  virtual ~Matrix() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual int64_t bytes() const = 0;  // that one product reads
};

/// Activations, or a small weight vector: f32 [rows][cols] on the device, but for AllocateRounded.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
};

/// Heads of one layer; the same for all layers of a model.
struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // even
};

/// What is done to a row of the input before the product.
enum class Prologue {
  kNone,     // in: [rows][weight.cols]
  kRmsNorm,  // in / sqrt(mean(in^2) + eps) * norm
  kSiluMul,  // in: [rows][2 * weight.cols] = gate, up; silu(gate) * up
};

/// out[r] (=|+=) prologue(in[r]) * weight^T + bias. Pointers are borrowed for the call.
struct LinearOp {
  const Buffer* in = nullptr;
  int64_t rows = 0;
  Prologue prologue = Prologue::kNone;
  const Buffer* norm = nullptr;  // [1][weight.cols], for kRmsNorm
  float eps = 0;
  const Matrix* weight = nullptr;
  const Buffer* bias = nullptr;  // [1][weight.rows] or nothing
  bool add = false;              // residual: add to `out`
  Buffer* out = nullptr;         // [>= rows][weight.rows]
};

/// q and k of every row of the step are normed (if norms are given) and rotated; k and v go to the KV blocks.
struct RopeOp {
  int64_t layer = 0;
  Buffer* qkv = nullptr;           // [rows][(num_heads + 2 * num_kv_heads) * head_dim] = q, k, v; q is changed in place
  const Buffer* q_norm = nullptr;  // [1][head_dim] or nothing
  const Buffer* k_norm = nullptr;
  float eps = 0;
};

/// One device and the memory that a model has there. A row's result depends on that row's own input, and for attention
/// on its own sequence's KV as stored, alone: never on the other rows, their number, the threads or block_tokens.
/// Thread-safety: none; one step loop calls it. Ownership: Matrix and Buffer objects must not outlive the backend and
/// belong to no other. Errors: RESOURCE_EXHAUSTED names the bytes wanted; device failures INTERNAL, a lost device
/// DATA_LOSS: at once, or, of what the device gets to later, in EndStep's status. Shapes that do not fit are the caller's
/// bug and checked. Units: elements, rows.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu/avx512_bf16"

  /// The sources' rows, stacked. All have the same number of columns. The sources are borrowed for the call.
  virtual absl::StatusOr<std::unique_ptr<Matrix>> PackMatrix(std::span<const WeightSource> stacked,
                                                             Exactness exactness) = 0;
  /// Vectors [1][cols], one after the other, as f32.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> UploadVector(std::span<const WeightSource> parts) = 0;
  /// Of every matrix packed so far.
  virtual const WeightReport& weights() const = 0;
  /// Zeroes.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t rows, int64_t cols) = 0;
  /// The same for gates and ups and for what Attention gives, which in kBf16 a device that multiplies bf16 may round to it:
  /// they, or what kSiluMul makes of them, are rounded anyway. Attention writes them, and Linear without bias and residual;
  /// Linear alone reads them, by kSiluMul or kNone, and KeepRows.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateRounded(int64_t rows, int64_t cols) = 0;
  /// Memory for a Sample of up to so many rows, whatever they want of it. One of more rows takes more when it comes.
  virtual absl::Status ReserveSampling(int64_t rows, int64_t vocab) = 0;
  /// The first `rows` rows as f32 [rows][cols] without gaps, valid until the buffer is next written. The buffer's
  /// contents are unspecified afterwards.
  virtual absl::StatusOr<std::span<const float>> Download(Buffer& buffer, int64_t rows) = 0;

  /// Fixes the rows of the ops that follow: positions for rope, blocks for KV. Borrowed for the call.
  virtual absl::Status BeginStep(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed) = 0;
  /// out[i] = row ids[i] of table. An id of -1 - i is the token that row i of the last Sample chose: a device may be
  /// given a step before the host knows what the one before it chose.
  virtual absl::Status Embed(const Matrix& table, std::span<const int32_t> ids, Buffer& out) = 0;
  virtual absl::Status Linear(const LinearOp& op) = 0;
  /// Row i of each buffer becomes what its row rows[i] is. REQUIRES: rows ascend, each comes once. Borrowed for the call.
  virtual absl::Status KeepRows(std::span<const int32_t> rows, std::span<Buffer* const> buffers) = 0;
  virtual absl::Status RopeAndStoreKv(const RopeOp& op) = 0;
  /// out: [rows][num_heads * head_dim]. Causal: a row sees the positions up to its own.
  virtual absl::Status Attention(int64_t layer, const Buffer& qkv, Buffer& out) = 0;
  /// At most once a step. One token a row from logits [rows][vocabulary], which stay as they are. A row that cannot be
  /// sampled fails alone, in `out`; an error returned says nothing of any row. `rows` are borrowed for the call, `out`
  /// until a fence submitted after has passed. engine/backend/sampling.h has the rules.
  virtual absl::Status Sample(const Buffer& logits, std::span<const SampleRow> rows, std::span<Sampled> out) = 0;

  /// What is submitted from now on begins after the fence.
  virtual void WaitFor(const Fence& fence) = 0;
  /// Passes when all that was submitted is done.
  virtual Fence Submitted() = 0;
  /// Submitted(), and how it went: `status`, the backend's until the fence has been waited for, gets the first failure
  /// since BeginStep, if none is in it already. What was submitted after a failure is not done.
  virtual Fence EndStep(absl::Status& status) = 0;
  /// After the reads that were submitted before: `changed` gets the indices, ascending, of words that do not hold any
  /// more. It, and what `checks` points at, are the backend's until a fence submitted after has passed.
  virtual absl::Status CheckWords(std::span<const WordCheck> checks, std::vector<int32_t>& changed) = 0;
};

}  // namespace swiftcache::engine::backend
