// SPDX-License-Identifier: Apache-2.0
// A connection to a donor: a stranger until it opens a lease, then a borrower of some, with a link of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/transport/message_limit.h"
#include "engine/transport/nccl/nccl_donor.h"
#include "engine/transport/nccl/nccl_link.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/shm_loop.h"

namespace swiftcache::engine::transport::nccl {

/// A unique id names an address that NCCL dials: it is heard only from who has shown a capability.
/// Thread-safety: the loop's thread only, but for Send and has_ended. Ownership: owns the link; borrows the
/// donor, which keeps it until has_ended. Shared: by the loop, the donor and its grants.
class NcclDonorChannel final : public ShmLoopPeer, public std::enable_shared_from_this<NcclDonorChannel> {
 public:
  NcclDonorChannel(NcclDonor& donor, std::shared_ptr<ShmSocket> socket) : donor_(donor), socket_(std::move(socket)) {}
  ShmSocket& socket() override { return *socket_; }
  int64_t most_message_bytes() const override { return kMaxNcclMessageBytes; }
  absl::Status OnDatagram(ShmDatagram datagram) override;
  void OnClosed(const absl::Status& why) override;

  bool Send(const std::vector<std::byte>& message) { return socket_->Send(message); }
  /// Its link's thread calls it no more.
  bool has_ended() const { return closed_ && (link_ == nullptr || link_->has_stopped()); }
  /// Joins. REQUIRES: the loop has stopped.
  void End() {
    if (link_ != nullptr) link_->Stop();
  }

 private:
  absl::Status OnMessage(const NcclMessage& message);
  absl::Status OnOpen(const NcclOpen& open);
  absl::Status OnJoin(const NcclJoin& join);
  absl::Status OnBatch(const NcclBatchMessage& message);
  absl::Status OnLeaseMessage(const NcclMessage& message);
  std::vector<NcclDonor::GrantPtr> GrantsOf(const NcclBatchMessage& message) const;
  void OnCrossingEnded(NcclDonor::Crossing& crossing, bool whole);
  absl::Status CheckRate();

  NcclDonor& donor_;
  const std::shared_ptr<ShmSocket> socket_;
  MessageLimit message_limit_;
  absl::flat_hash_map<int64_t, NcclDonor::GrantPtr> open_;  // by lease
  bool met_ = false;                                        // a lease was opened
  int num_refused_ = 0;                                     // before that
  uint64_t last_number_ = 0;                                // of a JOIN
  int64_t last_batch_ = 0;
  std::atomic<size_t> num_crossing_ = 0;
  std::atomic<bool> closed_ = false;
  std::unique_ptr<NcclLink> link_;  // since a lease was opened; last: its thread uses everything above
};

}  // namespace swiftcache::engine::transport::nccl
