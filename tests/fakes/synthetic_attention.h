// SPDX-License-Identifier: Apache-2.0
// The attention of one layer over random numbers in a GPU's memory, for kernels without a backend.
//
//   SyntheticAttention attention(driver, {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128}, {{.num_rows = 512}});
//   const std::vector<float> out = attention.Run(*kernels, attention.ByTilesOf(RowsPerProductTile(4, 128)));
#pragma once

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/bf16.h"
#include "engine/backend/cuda/attention_plan.h"
#include "engine/backend/cuda/attention_products_body.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cuda {

/// KV is bf16, in blocks of 16 tokens, of which each sequence's last one comes first. Thread-safety: none. Ownership: owns
/// what ops point at; borrows the driver. Errors: end the process.
class SyntheticAttention {
 public:
  SyntheticAttention(Driver& driver, const AttentionShape& shape, std::vector<StepSequence> sequences)
      : driver_(driver), shape_(shape), sequences_(std::move(sequences)), stream_(*driver.CreateStream()) {
    constexpr int64_t kBlockTokens = 16;
    const int64_t block = 2 * shape.num_kv_heads * kBlockTokens * shape.head_dim;
    std::vector<int32_t> sequence, position, first_block;
    std::vector<KvBlock> table;
    int64_t blocks = 0;
    for (const StepSequence& s : sequences_)
      blocks += (s.context_tokens + s.num_rows + kBlockTokens - 1) / kBlockTokens;
    std::vector<Bf16> kv(blocks * block);
    for (Bf16& x : kv) x = ToBf16(Normal());
    const uint64_t base = reinterpret_cast<uint64_t>(Put(kv));
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const StepSequence& s = sequences_[i];
      first_block.push_back(static_cast<int32_t>(table.size()));
      for (int64_t r = 0; r < s.num_rows; ++r) {
        sequence.push_back(static_cast<int32_t>(i));
        position.push_back(static_cast<int32_t>(s.context_tokens + r));
      }
      for (int64_t t = 0; t < s.context_tokens + s.num_rows; t += kBlockTokens) {
        const uint64_t at = base + static_cast<uint64_t>(--blocks * block) * sizeof(Bf16);
        table.push_back({.slices = {at, at}});
      }
    }
    step_ = {.tables = {.sequence = Put(sequence),
                        .position = Put(position),
                        .first_block = Put(first_block),
                        .blocks = Put(table),
                        .num_blocks = static_cast<int64_t>(table.size())},
             .kv = {shape.num_kv_heads, shape.head_dim, kBlockTokens},
             .num_heads = shape.num_heads};
    std::vector<float> qkv(static_cast<int64_t>(position.size()) * step_.qkv_cols());
    for (float& x : qkv) x = 2 * Normal();
    step_.qkv = Put(qkv);
    out_floats_ = static_cast<int64_t>(position.size()) * shape.num_heads * shape.head_dim;
    step_.out = Put(std::vector<float>(out_floats_));
  }
  ~SyntheticAttention() { driver_.DestroyStream(stream_); }

  Stream stream() const { return stream_; }
  int64_t group() const { return step_.group(); }
  /// By products, in tiles of so many rows at most, divided among `blocks` of threads.
  AttendOp ByTilesOf(int64_t rows, int64_t blocks = 1) {
    const AttentionPlanOptions options = {.rows_per_tile = rows, .num_kv_heads = shape_.num_kv_heads, .blocks = blocks};
    const AttentionPlan plan = PlanAttention(sequences_, options);
    const int64_t queries = plan.most_rows * group();
    AttendOp op = {.step = step_,
                   .tiles = Put(plan.tiles),
                   .num_tiles = static_cast<int64_t>(plan.tiles.size()),
                   .divided = Put(plan.divided),
                   .num_divided = static_cast<int64_t>(plan.divided.size()),
                   .most_parts = MostParts(options),
                   .products = true,
                   .strip_rows = StripOf(queries)};
    op.step.rows_per_tile = rows;
    op.step.rows_in_memory = plan.most_rows;
    op.step.kv_buffers = BuffersOfProducts(queries, shape_.head_dim, driver_.info().block_memory_bytes);
    op.memory_bytes = ProductBytes(queries, shape_.head_dim, op.step.kv_buffers);
    op.step.partial = Put(std::vector<float>(std::max(plan.num_parts, 1) * shape_.num_kv_heads * op.step.queries() *
                                             (shape_.head_dim + 2)));
    return op;
  }
  /// [rows][num_heads * head_dim]; NaN where nothing was written.
  std::vector<float> Run(Kernels& kernels, const AttendOp& op) {
    const PinnedBytes host = *PinnedBytes::Allocate(driver_, out_floats_ * int64_t{sizeof(float)});
    std::memset(host.data(), 0xff, static_cast<size_t>(host.bytes()));  // NaN in bf16, too
    const auto here = reinterpret_cast<uint64_t>(host.data()), there = reinterpret_cast<uint64_t>(step_.out);
    Copy({.to = there, .from = here, .bytes = host.bytes()});
    CHECK(kernels.Attend(stream_, op).ok());
    Copy({.to = here, .from = there, .bytes = host.bytes()});
    std::vector<float> found(host.as<float>(), host.as<float>() + out_floats_);
    if (op.step.out_number == Number::kBf16) {
      std::transform(host.as<Bf16>(), host.as<Bf16>() + out_floats_, found.begin(), FromBf16);
    }
    return found;
  }

 private:
  // Near enough.
  float Normal() {
    float sum = -2;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<float>(state_ >> 40) * 0x1p-24f;
    }
    return sum * 1.7f;
  }
  void Copy(const DeviceCopy& copy) {
    CHECK(driver_.Copy(stream_, {&copy, 1}).ok());
    driver_.Finish(stream_);
  }
  template <class T>
  T* Put(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(std::max<size_t>(1, values.size()) * sizeof(T));
    const PinnedBytes host = *PinnedBytes::Allocate(driver_, bytes);
    std::memcpy(host.data(), values.data(), values.size() * sizeof(T));
    memory_.push_back(*DeviceBytes::Allocate(driver_, bytes));
    Copy({.to = memory_.back().address(), .from = reinterpret_cast<uint64_t>(host.data()), .bytes = bytes});
    return memory_.back().as<T>();
  }

  Driver& driver_;
  const AttentionShape shape_;
  const std::vector<StepSequence> sequences_;
  const Stream stream_;
  uint64_t state_ = 1;
  std::vector<DeviceBytes> memory_;
  AttentionStep step_;
  int64_t out_floats_ = 0;
};

}  // namespace swiftcache::engine::backend::cuda
