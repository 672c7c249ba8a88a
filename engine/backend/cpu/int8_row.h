// SPDX-License-Identifier: Apache-2.0
// Inputs of a product as 8-bit integers, quantised per row and group of 32.
//
//   kernels.to_int8(x, cols / 32, layout.zero, layout.inputs, out);
//   kernels.residual(x, cols / 32, out);  // of Int8Rows::kTwice, and then to_int8 again
#pragma once

#include <cstdint>

namespace swiftcache::engine::backend::cpu {

inline constexpr int64_t kInt8Inputs = 32;  // of a group

/// codes[i] = nearest(x[i] * (127 / largest)), ties to even; scale = largest / 127, `largest` being the group's largest
/// magnitude. A group that holds infinity or NaN has such a scale, so that what is computed from it is not finite either;
/// one of less than 1e-30 is zero.
struct Int8Group {
  int8_t codes[kInt8Inputs];
  float scale;
  float sum;          // scale * sum of the codes, for minima: that of x would let errors of x meet weights that have no
                      // negative ones to cancel them (measured: twice the error of logits)
  int32_t starts[2];  // of each block of weights within the group: -zero * sum of its codes
};
static_assert(sizeof(Int8Group) == 48);

/// How a row meets quantised weights: as one row of these groups; as two, the second of what the first leaves, at a scale
/// of its own: 16 bits between them, and their products are added; or as it is, or as bf16. In the order of reports.
enum class Int8Rows { kOnce, kTwice, kNone };

}  // namespace swiftcache::engine::backend::cpu
