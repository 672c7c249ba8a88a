// SPDX-License-Identifier: Apache-2.0
// A connection to a donor: a stranger until its HELLO is taken, then the borrower of one lease.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/sealed_memory.h"
#include "engine/transport/message_limit.h"
#include "engine/transport/shm_donor.h"
#include "engine/transport/shm_loop.h"

namespace swiftcache::engine::transport {

/// Thread-safety: the loop's thread only; `staging` and the socket do not change once the donor has it as a grant's
/// channel, and its end is anybody's who does not hold the donor's lock. Ownership: owns its view of the borrower's
/// staging memory, which the donor's thread maps and unmaps; borrows the donor.
class ShmDonorChannel final : public ShmPeer, public std::enable_shared_from_this<ShmDonorChannel> {
 public:
  ShmDonorChannel(ShmDonor& donor, std::shared_ptr<ShmSocket> socket) : donor_(donor), socket_(std::move(socket)) {}
  ~ShmDonorChannel() override { donor_.LeaveToThread(std::move(staging_)); }
  ShmSocket& socket() override { return *socket_; }
  absl::Status OnMessage(ShmMessage message, std::vector<memory::UniqueFd> fds) override;
  void OnClosed(const absl::Status& why) override;

  const std::shared_ptr<ShmSocket>& shared_socket() const { return socket_; }
  const PeerStaging& staging() const { return *staging_; }
  /// Before the donor has it as a grant's channel.
  void set_staging(std::unique_ptr<PeerStaging> staging) { staging_ = std::move(staging); }
  /// Its instance; empty before its HELLO is taken.
  const std::string& borrower() const { return borrower_; }

 private:
  absl::Status OnHello(const ShmHello& hello, std::vector<memory::UniqueFd> fds);
  absl::Status OnStore(const ShmStore& store);
  absl::Status OnRenew(const ShmRenew& renew);
  absl::Status OnRelease();
  absl::StatusOr<ShmDonor::GrantPtr> Admit(const ShmHello& hello);

  ShmDonor& donor_;
  const std::shared_ptr<ShmSocket> socket_;
  MessageLimit message_limit_;
  bool met_ = false;                   // HELLO came
  std::optional<int64_t> last_store_;  // its ticket
  ShmDonor::GrantPtr grant_;           // since it was taken, until the lease is released
  std::string borrower_;
  std::unique_ptr<PeerStaging> staging_;
};

}  // namespace swiftcache::engine::transport
