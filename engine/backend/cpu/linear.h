// SPDX-License-Identifier: Apache-2.0
// Matrix products over packed weights: prologue of the rows, product panel by panel, both spread over the pool.
//
//   Linear linear(kernels, precision, pool);
//   RETURN_IF_ERROR(linear.Reserve(max_rows, weight.cols()));
//   linear.Run(op);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/memory.h"
#include "engine/backend/cpu/packed_matrix.h"
#include "engine/backend/cpu/thread_pool.h"

namespace swiftcache::engine::backend::cpu {

/// Which kernel runs depends on ISA, precision and format alone; every output is one chain of operations over all inputs,
/// so how rows and panels are cut is free.
/// Thread-safety: none. Ownership: borrows the pool, owns the prepared rows. Errors: RESOURCE_EXHAUSTED.
class Linear {
 public:
  /// `bf16_rows`: rows are rounded to bf16, where neither they nor the weights are f32 or integers.
  Linear(const Kernels& kernels, bool bf16_rows, ThreadPool& pool);

  /// Makes room for products of `rows` rows with `cols` inputs. Grows only.
  absl::Status Reserve(int64_t rows, int64_t cols);
  void Run(const LinearOp& op);

 private:
  // Few rows: each worker prepares them for itself, which costs less than a barrier.
  static constexpr int64_t kPrivateRows = 3;
  static constexpr int64_t kStreamedRows = 32;  // of products that wait for the weights, at most
  // Rows that a panel is read for at a time. Their inputs, 0.6 MB of int8 (kTwice: 1.2) or 1.5 MB of f32 where these are 2,048, come
  // from L2 or L3, once for each panel.
  static constexpr int64_t kRowBlock = 192;

  struct alignas(64) Prepared {
    int64_t product = 0;  // whose rows a worker has prepared
  };

  // All panels, by runs: one comes from memory as one stream, which takes a while to flow. Long runs first, short ones
  // last, so that workers end together. rows_of(worker): the prepared rows.
  template <typename RowsOf>
  void StreamPanels(const LinearOp& op, const RowsOf& rows_of);
  void RunPrivate(const LinearOp& op);
  void RunShared(const LinearOp& op);
  void Prepare(const LinearOp& op, int64_t row, int worker, std::byte* out) const;
  void Panel(const LinearOp& op, const std::byte* prepared, int64_t panel, int64_t row, int64_t rows, int worker) const;
  void QuantizedPanel(const LinearOp& op, const std::byte* prepared, int64_t panel, int64_t row, int64_t rows,
                      int worker) const;
  int64_t InputBytes() const { return bf16_rows_ ? sizeof(Bf16) : sizeof(float); }
  int64_t PreparedRowBytes(const PackedMatrix& weight) const;
  int64_t MaxRowBytes() const { return PreparedRowBytes(max_cols_); }
  int64_t PreparedRowBytes(int64_t cols) const;

  const Kernels kernels_;
  const bool bf16_rows_;  // prepared rows are bf16
  ThreadPool& pool_;
  int64_t max_rows_ = 0, max_cols_ = 0;
  std::vector<int64_t> runs_;       // where they begin, and the end of the last
  int64_t product_ = 0;             // counts those of few rows
  std::vector<Prepared> prepared_;  // [threads]
  // Prepared rows: [PadToPanel(max_cols)] inputs, then f32 [PadToPanel(max_cols) / 32] sums of blocks; or Int8Group,
  // which is less (Int8Rows::kTwice: two rows of them, less than f32, which alone they stand for).
  HostMemory shared_;    // [max_rows]
  HostMemory private_;   // [threads][kPrivateRows]
  HostMemory unpacked_;  // [threads][PadToPanel(max_cols)][32] of inputs' elements
  HostMemory row_;       // f32 [threads][PadToPanel(max_cols)]
};

}  // namespace swiftcache::engine::backend::cpu
