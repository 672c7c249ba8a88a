// SPDX-License-Identifier: Apache-2.0
// What the rows of a step want of the sampler, and how a token is chosen on every device.
//
//   const SampleRow rows[] = {SampleRowOf(/*logits_row=*/0, state, /*position=*/prompt.size())};
//   Sampled out[1];
//   RETURN_IF_ERROR(backend.Sample(*logits, rows, out));
//   if (out[0].ok()) state.Observe(out[0]->token_id);
//
// The rules, in their order, as in vLLM: penalties, temperature, min-p, top-k, top-p (over what top-k left). Ranks go by
// descending logit; where logits tie, the lowest id comes first. NaN is impossible; +inf is the largest finite float.
//
// Temperature 0 takes the first of the ranks. Otherwise a candidate's weight is exp((logit - largest) / temperature) as
// a whole number of units of 2^-40, rounded down, so that sums are exact in whatever order a device adds. Min-p keeps
// logits of at least largest + temperature * log(min_p); top-p keeps the shortest run of ranks that holds at least
// ceil(top_p * sum of weights). The draw inverts the cumulative weights of what is kept: with
// u = sample::UniformAt(draw), the token is the first at which they exceed floor(u * their sum); by rank where top-k or
// top-p is set, else by id. Floors and products are in double.
//
// Log-probabilities are of the logits as the model gave them: neither penalties nor temperature nor cuts change them.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "engine/sample/random.h"
#include "engine/sample/sampled_token.h"
#include "engine/sample/sampling_params.h"
#include "engine/sample/sampling_state.h"

namespace swiftcache::engine::backend {

/// One token to be chosen. Several rows may name the same logits. Thread-safety: a value. Ownership: borrows `seen`.
struct SampleRow {
  int64_t logits_row = 0;
  sample::SamplingParams params;                 // its seed is draw.seed
  sample::DrawId draw;                           // where a token is drawn at random
  std::span<const sample::SeenToken> seen = {};  // by ascending id; what params' penalties apply to
};

/// INTERNAL where no logit of the row is a number above -inf.
using Sampled = absl::StatusOr<sample::SampledToken>;

/// The next token of a continuation. `position`: of that token, counted from the prompt's first. The result borrows
/// from `state` until its next Observe.
inline SampleRow SampleRowOf(int64_t logits_row, const sample::SamplingState& state, int64_t position) {
  return {logits_row, state.params(), {state.params().seed, state.continuation(), position}, state.seen()};
}

}  // namespace swiftcache::engine::backend
