// SPDX-License-Identifier: Apache-2.0
// What a GPU computes for the backend: each function sets one kernel, or one product, going on a stream. The bodies are
// in *_body.h; native/kernels.cu runs them on a GPU, tests/fakes/host_kernels.h on the host.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels, CreateKernels(driver));
//   RETURN_IF_ERROR(kernels->Prepare(stream, {.in = x, .rows = n, .cols = cols, .prologue = Prologue::kRmsNorm, ...}));
//   RETURN_IF_ERROR(kernels->Multiply(stream, {.in = prepared, .rows = n, .weight = w, .out = y, ...}));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cuda/attention_body.h"
#include "engine/backend/cuda/attention_products_body.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/cuda/packed_weights.h"
#include "engine/backend/cuda/row_bodies.h"
#include "engine/backend/cuda/token_body.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend::cuda {

// Ops compare equal where they ask for the same, of the same places.

/// Rows as a product reads them. Pointers are the device's.
struct PrepareOp {
  const void* in = nullptr;         // [..][cols], or [..][2 * cols] for kSiluMul
  Number in_number = Number::kF32;  // of `in`; bf16 for kSiluMul alone
  int64_t rows = 0;
  int64_t cols = 0;
  Prologue prologue = Prologue::kNone;
  const float* norm = nullptr;  // [cols], for kRmsNorm
  float eps = 0;
  Number number = Number::kBf16;  // of `out`
  void* out = nullptr;            // [rows][cols]

  friend bool operator==(const PrepareOp&, const PrepareOp&) = default;
};

/// out[r] (=|+=) in[r] * weight^T + bias. Where `out` is bf16, `in` and `weight` are too, and nothing is added.
struct ProductOp {
  const void* in = nullptr;  // [rows][cols]
  int64_t rows = 0;
  const void* weight = nullptr;  // [outputs][cols]
  int64_t outputs = 0;
  int64_t cols = 0;
  Number number = Number::kBf16;  // of `in` and `weight`
  const float* bias = nullptr;    // [outputs] or null
  bool add = false;
  void* out = nullptr;  // [rows][out_cols], of which the product is the first `outputs` columns
  Number out_number = Number::kF32;
  int64_t out_cols = 0;

  friend bool operator==(const ProductOp&, const ProductOp&) = default;
};

/// The same of a few rows by quantised weights, which are decoded in registers. What comes of a row depends on that row
/// alone.
struct QuantizedProductOp {
  /// Weights are read once for all rows, but the rows once for every 16 outputs: rows / 8 bytes a weight, out of the cache.
  /// Weights that are decoded first are written and read again: 4 bytes each, out of the same cache, and cost two kernels more.
  static constexpr int64_t kMostRows = 64;
  const Bf16* in = nullptr;  // [rows][cols]
  int64_t rows = 0;
  PackedWeights weight;  // [outputs][cols]
  int64_t outputs = 0;
  int64_t cols = 0;
  const float* bias = nullptr;  // [outputs] or null
  bool add = false;
  void* out = nullptr;  // [rows][outputs]
  Number out_number = Number::kF32;

  friend bool operator==(const QuantizedProductOp&, const QuantizedProductOp&) = default;
};

/// Row i becomes what row rows[i] is.
struct KeepOp {
  const int32_t* rows = nullptr;  // [num_rows], ascending, each once
  int64_t num_rows = 0;
  int64_t cols = 0;
  Number number = Number::kF32;  // of `data`
  void* data = nullptr;          // [..][cols]

  friend bool operator==(const KeepOp&, const KeepOp&) = default;
};

/// Rows of a packed matrix, as numbers.
struct UnpackOp {
  PackedWeights from;  // [..][cols]
  int64_t cols = 0;
  const int32_t* ids = nullptr;     // [rows]: row i is row ids[i], of which -1 - i is chosen[i]; null: row i
  const int32_t* chosen = nullptr;  // of the last ChooseOp
  int64_t rows = 0;
  Number number = Number::kF32;  // of `out`
  void* out = nullptr;           // [rows][cols]

  friend bool operator==(const UnpackOp&, const UnpackOp&) = default;
};

/// The cosines and sines of each row's position.
struct RotationsOp {
  const float* inverse_frequencies = nullptr;  // [half]
  int64_t half = 0;
  const int32_t* positions = nullptr;  // [rows]
  int64_t rows = 0;
  float* rotations = nullptr;  // [rows][2 * half]

  friend bool operator==(const RotationsOp&, const RotationsOp&) = default;
};

struct RotateOp {
  RopeStep step;
  int64_t rows = 0;
  Number number = Number::kBf16;  // of K and V

  friend bool operator==(const RotateOp&, const RotateOp&) = default;
};

/// So many blocks that attend by products are to run on a multiprocessor at once, so that some compute while others wait for
/// K and V: as many as the sums of their strips leave registers for.
constexpr int BlocksOfProducts(int64_t head_dim, int64_t strip_rows) {
  const int64_t dim = ColumnsInRegisters(head_dim);
  return dim * strip_rows <= 1024 ? 4 : dim * strip_rows <= 2048 ? 3 : 2;
}

/// Buffers for K and V of such a block, of a step whose tiles have `queries` at most: three where the blocks that are to run
/// at once have memory for them, else two, or one where a block has no more. A multiprocessor has little more memory than
/// a block of it can have, and takes kMemoryOfEachBlock for each beside what it asks for.
inline constexpr int64_t kMemoryOfEachBlock = 2 << 10;
constexpr int64_t BuffersOfProducts(int64_t queries, int64_t head_dim, int64_t block_memory_bytes) {
  const int64_t blocks = BlocksOfProducts(head_dim, StripOf(queries));
  const int64_t of_three = blocks * (ProductBytes(queries, head_dim, kMostBuffers) + kMemoryOfEachBlock);
  if (of_three <= block_memory_bytes + kMemoryOfEachBlock) return kMostBuffers;
  return ProductBytes(queries, head_dim, 2) <= block_memory_bytes ? 2 : 1;
}

struct AttendOp {
  AttentionStep step;
  const AttentionTile* tiles = nullptr;  // [num_tiles]
  int64_t num_tiles = 0;
  const DividedTile* divided = nullptr;  // [num_divided]
  int64_t num_divided = 0;
  int64_t most_parts = 0;         // of a divided tile
  int64_t memory_bytes = 0;       // of a block
  bool products = false;          // by attention_products_body.h, which HasProducts; else by attention_body.h
  int64_t strip_rows = 16;        // queries of a warp, by products: StripOf
  Number number = Number::kBf16;  // of K and V

  friend bool operator==(const AttendOp&, const AttendOp&) = default;
};

struct ChooseOp {
  const float* logits = nullptr;  // [..][vocab]
  int64_t vocab = 0;
  const TokenChoice* choices = nullptr;  // [rows]
  int64_t rows = 0;
  ChosenToken* results = nullptr;  // [rows]
  int32_t* top_ids = nullptr;      // by TokenChoice::first_top
  float* top_logits = nullptr;     // likewise
  int32_t* chosen = nullptr;       // [rows]: for the next Embed

  friend bool operator==(const ChooseOp&, const ChooseOp&) = default;
};

/// `elements` decoded weights from whole blocks of a format.
struct DecodeOp {
  WeightFormat format = WeightFormat::kF32;
  const uint8_t* blocks = nullptr;
  int64_t num_blocks = 0;
  Number number = Number::kBf16;
  void* out = nullptr;  // [num_blocks * elements of a block]
};

/// Thread-safety: none. Ownership: borrows the driver and, until the stream is done, what the ops point at. Errors: the
/// driver's, at once or by a later call; what an op says of shapes is the caller's bug and checked. Units: elements.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual absl::Status Decode(Stream stream, const DecodeOp& op) = 0;
  virtual absl::Status Unpack(Stream stream, const UnpackOp& op) = 0;
  virtual absl::Status Prepare(Stream stream, const PrepareOp& op) = 0;
  virtual absl::Status Multiply(Stream stream, const ProductOp& op) = 0;
  virtual absl::Status MultiplyQuantized(Stream stream, const QuantizedProductOp& op) = 0;
  virtual absl::Status Keep(Stream stream, const KeepOp& op) = 0;
  virtual absl::Status Rotations(Stream stream, const RotationsOp& op) = 0;
  virtual absl::Status RopeAndStore(Stream stream, const RotateOp& op) = 0;
  virtual absl::Status Attend(Stream stream, const AttendOp& op) = 0;
  virtual absl::Status Choose(Stream stream, const ChooseOp& op) = 0;
};

}  // namespace swiftcache::engine::backend::cuda
