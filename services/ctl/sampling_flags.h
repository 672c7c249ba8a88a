// SPDX-License-Identifier: Apache-2.0
// The flags that choose a model and its sampling parameters; shared by chat, generate and bench.
//
//   auto flags = std::make_shared<SamplingFlags>();
//   flags->AddTo(command, /*default_max_tokens=*/256);
//   *request.mutable_sampling() = flags->ToProto();
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "swiftcache/v1/generate.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace swiftcache::services::ctl {

/// --model, and --wait for a gateway that serves it.
struct ModelFlags {
  std::string model;
  double wait_seconds = 5;

  void AddTo(CLI::App& command);
  absl::Duration wait() const { return absl::Seconds(wait_seconds); }
};

/// Ranges are those of the gateway, which checks them too.
struct SamplingFlags {
  int32_t max_tokens = 256;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  void AddTo(CLI::App& command, int32_t default_max_tokens);
  v1::Sampling ToProto() const;
};

}  // namespace swiftcache::services::ctl
