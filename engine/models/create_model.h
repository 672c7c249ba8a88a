// SPDX-License-Identifier: Apache-2.0
// Creates a model that runs on a device from a checkpoint.
//
//   ASSIGN_OR_RETURN(auto model, CreateModel(checkpoint.config, *checkpoint.weights, device, options));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend/device.h"
#include "engine/backend/kv_layout.h"
#include "engine/loader/model_config.h"
#include "engine/loader/weights.h"
#include "engine/models/decoder.h"

namespace swiftcache::engine::models {

/// Precision of weights in memory and of matrix products. kAuto: bf16 where the machine has AVX-512 BF16; elsewhere
/// bf16 weights with f32 arithmetic.
enum class ComputeDtype { kAuto, kBf16, kF32 };

struct ModelOptions {
  backend::KvLayout kv;  // layers, heads and head_dim must be the config's
  int64_t max_batch_rows = 512;
  int64_t max_logit_rows = 1;  // allocated at first; a step that needs more rows allocates them
  ComputeDtype dtype = ComputeDtype::kAuto;
  std::function<bool()> unwanted = nullptr;  // asked before each layer: true ends loading
};

/// Bytes that the packed weights will take, to be compared with the memory there is before CreateModel begins; where
/// sources of different formats are stacked, a little less.
int64_t PackedWeightBytes(const loader::Weights& weights, ComputeDtype dtype, const backend::Device& device);

/// Bytes of activations and logits, from CreateModel on.
int64_t ActivationBytes(const loader::ModelConfig& config, const ModelOptions& options);

/// Converts and packs the weights (the slow part of start-up); `weights` is not needed afterwards, the device is.
/// Errors: INVALID_ARGUMENT (options that do not fit the config), RESOURCE_EXHAUSTED (memory; names the bytes wanted),
/// CANCELLED (unwanted).
absl::StatusOr<std::unique_ptr<Decoder>> CreateModel(const loader::ModelConfig& config, const loader::Weights& weights,
                                                     backend::Device& device, const ModelOptions& options);

}  // namespace swiftcache::engine::models
