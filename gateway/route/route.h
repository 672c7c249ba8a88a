// SPDX-License-Identifier: Apache-2.0
// Decides which engine of a model gets a request, and whether a failed request is retried on another. Pure: no I/O, no
// clock, no threads.
//
//   Tried tried;
//   ASSIGN_OR_RETURN(size_t i, PickEngine(model, {.prompt = 900, .answer = 100}, tried, first));
//   ...
//   if (ShouldRetry(status, anything_sent)) { tried.push_back(model.engines[i].link); ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/fleet/fleet.h"

namespace swiftcache::gateway::route {

/// Engines that a request was sent to. Links and not names: a process that has taken a dead one's name is another
/// engine.
using Tried = std::vector<std::shared_ptr<fleet::EngineLink>>;

/// To so many engines a request is sent at most: it may be what they fail at.
inline constexpr int kMaxAttempts = 3;

/// Of a request: its prompt's, and those that its answer may have, 0 where it does not say.
struct Tokens {
  int64_t prompt = 0, answer = 0;
};

/// The index in `model.engines` of the engine to use. Of those that are READY, not in `tried` and hold the prompt:
///   1. no suspect one, unless all are;
///   2. none whose room for the answer is less by 1/16 of what the roomiest has, or more;
///   3. the least load: this gateway's requests under way there, and others' by its last report;
///   4. the first by name, from index `first` on: gateways do not all begin at the same one.
/// UNAVAILABLE: there is none; says what was found instead.
absl::StatusOr<size_t> PickEngine(const fleet::ModelView& model, const Tokens& tokens, const Tried& tried,
                                  size_t first = 0);

/// Whether to try another engine: only if this one is dead, draining, starting, full, or has no memory for so long a
/// request, and nothing has been sent to the client yet.
bool ShouldRetry(const absl::Status& status, bool anything_sent);

/// Whether clients can use the model: its card is there, and one of its engines is alive.
bool IsServed(const fleet::ModelView& model);

/// NOT_FOUND; lists the models served. UNAVAILABLE where there is none, as while the first engines load.
absl::Status UnknownModel(const std::string& model_name, const std::vector<fleet::ModelView>& models);

}  // namespace swiftcache::gateway::route
