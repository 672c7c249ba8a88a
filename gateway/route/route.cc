// SPDX-License-Identifier: Apache-2.0
#include "gateway/route/route.h"

#include <algorithm>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"

namespace swiftcache::gateway::route {
namespace {

using fleet::EngineState;
using fleet::EngineView;
using fleet::ModelView;

constexpr size_t kShownNameBytes = 100;
constexpr int64_t kCutSteps = 16;  // less than one of the roomiest engine's room decides over no load

int64_t Load(const EngineView& engine) { return engine.link->in_flight() + engine.requests_of_others; }

bool Usable(const EngineView& engine, int64_t prompt_tokens, const Tried& tried) {
  return engine.link != nullptr && engine.state == EngineState::kReady &&
         std::find(tried.begin(), tried.end(), engine.link) == tried.end() &&
         engine.max_model_len_tokens > prompt_tokens;
}

// "; tried and failed: a, b"
std::string Named(const Tried& tried) {
  if (tried.empty()) return "";
  return absl::StrCat("; tried and failed: ", absl::StrJoin(tried, ", ", [](std::string* out, const auto& link) {
                        absl::StrAppend(out, link->name());
                      }));
}

// "2 READY (tried), 1 STARTING"
std::string Found(const ModelView& model) {
  std::map<std::string, int> count;
  for (const EngineView& engine : model.engines) ++count[fleet::Name(engine.state)];
  return absl::StrJoin(count, ", ",
                       [](std::string* out, const auto& item) { absl::StrAppend(out, item.second, " ", item.first); });
}

}  // namespace

absl::StatusOr<size_t> PickEngine(const ModelView& model, const Tokens& tokens, const Tried& tried, size_t first) {
  const auto room = [&tokens](const EngineView& engine) {
    return std::min(tokens.answer, engine.max_model_len_tokens - tokens.prompt);
  };
  std::vector<size_t> usable;  // in the order in which equals are taken
  for (size_t k = 0; k < model.engines.size(); ++k) {
    const size_t i = (first % model.engines.size() + k) % model.engines.size();
    if (Usable(model.engines[i], tokens.prompt, tried)) usable.push_back(i);
  }
  const auto suspect = [&model](size_t i) { return model.engines[i].suspect; };
  if (!std::ranges::all_of(usable, suspect)) std::erase_if(usable, suspect);
  int64_t most_room = 0;
  for (const size_t i : usable) most_room = std::max(most_room, room(model.engines[i]));
  const int64_t step = std::max<int64_t>(1, CeilDiv(most_room, kCutSteps));
  // Less is better: first what would be cut off.
  const auto cost = [&](size_t i) {
    return std::pair((most_room - room(model.engines[i])) / step, Load(model.engines[i]));
  };
  const auto best = std::ranges::min_element(usable, {}, cost);
  if (best != usable.end()) return *best;
  return absl::UnavailableError(absl::StrCat("model ", model.name, ": no engine can take the request (", Found(model),
                                             Named(tried), "); try again shortly"));
}

bool ShouldRetry(const absl::Status& status, bool anything_sent) {
  return !anything_sent &&
         (absl::IsUnavailable(status) || absl::IsResourceExhausted(status) || absl::IsOutOfRange(status));
}

bool IsServed(const ModelView& model) {
  return model.text.ok() && std::any_of(model.engines.begin(), model.engines.end(), [](const EngineView& engine) {
           return engine.link != nullptr && engine.state != EngineState::kStarting;
         });
}

absl::Status UnknownModel(const std::string& model_name, const std::vector<ModelView>& models) {
  std::vector<std::string> served;
  for (const ModelView& model : models) {
    if (IsServed(model)) served.push_back(model.name);
  }
  if (served.empty()) return absl::UnavailableError("no engine of any model is there at present: try again shortly");
  return absl::NotFoundError(absl::StrCat("model \"", absl::CHexEscape(model_name.substr(0, kShownNameBytes)),
                                          model_name.size() > kShownNameBytes ? "..." : "",
                                          "\" is not served here; served: ", absl::StrJoin(served, ", ")));
}

}  // namespace swiftcache::gateway::route
