// SPDX-License-Identifier: Apache-2.0
// What a backend made of the weights it was given, and what that costs in precision.
//
//   LOG(INFO) << "weights: " << Describe(backend.weights());
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend {

/// Matrices alone: vectors (norms, biases) are f32 on every backend. A value is rounded if what products read is not the
/// stored one's f32, as GGML decodes it.
/// Thread-safety: a value. Ownership: its own. Errors: none. Units: matrices of the file, stacked ones one by one.
struct WeightReport {
  std::map<WeightFormat, int64_t> stored;  // matrices of each format
  std::string packed;                      // the format that products read: "bf16"
  std::string rows = {};              // what their other side, activations, is rounded to; f32: not; may be unknown
  int64_t rounded = 0;                // matrices with a value that was rounded
  double largest_relative_error = 0;  // of a value, by rounding it
};

/// "210 matrices Q4_1, 1 Q8_0 as stored; packed as bf16, which rounds 211 of them (largest relative error 0.0039);
/// activations in int8".
std::string Describe(const WeightReport& report);

/// The formats of the matrices, the most frequent first: "Q4_1+Q8_0".
std::string StoredFormats(const WeightReport& report);

}  // namespace swiftcache::engine::backend
