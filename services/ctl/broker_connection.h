// SPDX-License-Identifier: Apache-2.0
// A command's client of the broker: blocking calls with a deadline.
//
//   ASSIGN_OR_RETURN(v1::WatchResponse first, BrokerConnection(addresses.broker).Snapshot());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "swiftcache/v1/broker.grpc.pb.h"

namespace swiftcache::services::ctl {

/// Thread-safety: safe. Ownership: owns its channel. Errors: the broker's, and UNAVAILABLE with the address where
/// no broker answers.
class BrokerConnection {
 public:
  explicit BrokerConnection(const std::string& broker);

  /// The tables as they are: the first message of a Watch.
  absl::StatusOr<v1::WatchResponse> Snapshot();
  /// A snapshot and then every change, until the stream ends; returns why. `context.TryCancel()` ends it.
  absl::Status Follow(grpc::ClientContext& context, const std::function<void(const v1::WatchResponse&)>& on_news);
  /// None: no limit.
  absl::Status LimitLease(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes);
  absl::Status RevokeLease(int64_t lease_id);

 private:
  absl::Status Explain(const grpc::Status& status) const;

  const std::string address_;
  const std::unique_ptr<v1::BrokerService::Stub> stub_;
};

}  // namespace swiftcache::services::ctl
