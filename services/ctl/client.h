// SPDX-License-Identifier: Apache-2.0
// A command's client of the gateway: blocking calls, and the times and counts of each response.
//
//   Client client(addresses.gateway);
//   ASSIGN_OR_RETURN(std::string model, client.ResolveModel(model, wait));
//   ASSIGN_OR_RETURN(Turn turn, client.Generate(request, [](const auto& response) { std::cout << response.text(); }));
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "swiftcache/v1/generate.grpc.pb.h"

namespace swiftcache::services::ctl {

/// One response, as measured by the client.
struct Turn {
  std::string text;    // of index 0
  int64_t tokens = 0;  // of all indices
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0, leased_tokens = 0;  // of the prompt; leased: of the cached ones, those in leased memory
  absl::Duration time_to_first_token, total;
  std::vector<absl::Duration> gaps;  // between messages with tokens

  /// Of the tokens after the first; 0 where there are none.
  double tokens_per_second() const;
  /// "ttft 12.3 ms, 54.2 tokens/s, 96 tokens; prompt 41 tokens, 12 from the cache", and where there are any
  /// ", 8 of them in leased memory". Without the speed where it was measured over too short a time to say much.
  std::string Summary() const;
};

/// Thread-safety: safe. Ownership: owns its channel. Errors: the gateway's, and UNAVAILABLE with the address where
/// no gateway answers.
class Client {
 public:
  using OnResponse = std::function<void(const v1::GenerateResponse&)>;

  explicit Client(const std::string& gateway);

  /// `model`, or the one model that is served where `model` is empty. Waits up to `wait` until a gateway answers and
  /// serves it: a cluster that has just started does so a moment later.
  absl::StatusOr<std::string> ResolveModel(const std::string& model, absl::Duration wait);
  absl::StatusOr<Turn> Generate(const v1::GenerateRequest& request, const OnResponse& on_response);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);

 private:
  absl::StatusOr<std::vector<std::string>> Models();
  void Pause();
  absl::Status Explain(const grpc::Status& status) const;
  absl::Status NoGateway(const absl::Status& status, absl::StatusCode code) const;

  const std::string address_;
  const RealClock clock_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::GenerateService::Stub> stub_;
};

}  // namespace swiftcache::services::ctl
