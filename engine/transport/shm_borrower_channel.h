// SPDX-License-Identifier: Apache-2.0
// A lease's channel, seen from its borrower: hears what the donor says, and that it may be said.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/transport/message_limit.h"
#include "engine/transport/shm_borrower.h"
#include "engine/transport/shm_lease.h"
#include "engine/transport/shm_loop.h"

namespace swiftcache::engine::transport {

/// Thread-safety: the loop's thread only. Ownership: shares lease and socket; borrows the borrower.
class ShmBorrowerChannel final : public ShmPeer {
 public:
  ShmBorrowerChannel(ShmBorrower& borrower, std::shared_ptr<ShmLease> lease, std::shared_ptr<ShmSocket> socket)
      : borrower_(borrower), lease_(std::move(lease)), socket_(std::move(socket)) {}
  ~ShmBorrowerChannel() override { borrower_.LeaveToThread(std::move(lease_)); }
  ShmSocket& socket() override { return *socket_; }
  absl::Status OnMessage(ShmMessage message, std::vector<memory::UniqueFd> fds) override;
  void OnClosed(const absl::Status& why) override { borrower_.OnEnd(*lease_, why); }

 private:
  absl::Status OnFirstMessage(ShmMessage message, std::vector<memory::UniqueFd> fds);
  absl::Status OnLaterMessage(const ShmMessage& message, const std::vector<memory::UniqueFd>& fds);

  ShmBorrower& borrower_;
  std::shared_ptr<ShmLease> lease_;
  const std::shared_ptr<ShmSocket> socket_;
  MessageLimit message_limit_;
  bool granted_ = false;
};

}  // namespace swiftcache::engine::transport
