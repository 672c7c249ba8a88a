// SPDX-License-Identifier: Apache-2.0
// Decides which engine of a model gets a request, and whether a failed one is tried again elsewhere. Pure: no bytes, no
// clock, no threads.
//
//   std::set<std::string> tried;
//   ASSIGN_OR_RETURN(size_t i, PickEngine(model, prompt.size(), tried));
//   ...
//   if (ShouldRetry(status, anything_sent)) { tried.insert(name); ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/fleet/fleet.h"

namespace swiftcache::gateway::route {

/// The index in `model.engines` of the READY engine with the least load (our requests under way there plus what it
/// reported) that is not in `tried` and takes prompts of `prompt_tokens`; the first by name among equals.
/// UNAVAILABLE: there is none; says what was found instead.
absl::StatusOr<size_t> PickEngine(const fleet::ModelView& model, int64_t prompt_tokens,
                                  const std::set<std::string>& tried);

/// Only where an engine is dead, draining, starting or full is another worth a try, and only while the client has seen
/// nothing.
bool ShouldRetry(const absl::Status& status, bool anything_sent);

/// May be asked for: has its text and an engine that lives.
bool IsServed(const fleet::ModelView& model);

/// NOT_FOUND; lists the models served.
absl::Status UnknownModel(const std::string& model_name, const std::vector<fleet::ModelView>& models);

}  // namespace swiftcache::gateway::route
