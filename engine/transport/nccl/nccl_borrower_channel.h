// SPDX-License-Identifier: Apache-2.0
// A borrower's channel to one donor, for all of its leases, and the link beside it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/transport/message_limit.h"
#include "engine/transport/nccl/nccl_borrower.h"
#include "engine/transport/nccl/nccl_link.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/nccl/nccl_transfer.h"
#include "engine/transport/shm_loop.h"

namespace swiftcache::engine::transport::nccl {

/// Thread-safety: what is of ShmLoopPeer: the loop's thread only; the rest: safe. Ownership: owns the link; borrows the
/// borrower, which keeps it until has_ended. Shared: by the loop, the borrower, its leases and transfers.
class NcclBorrowerChannel final : public ShmLoopPeer {
 public:
  NcclBorrowerChannel(NcclBorrower& borrower, std::string path, std::shared_ptr<ShmSocket> socket);
  ShmSocket& socket() override { return *socket_; }
  int64_t most_message_bytes() const override { return kMaxNcclMessageBytes; }
  absl::Status OnDatagram(ShmDatagram datagram) override;
  void OnClosed(const absl::Status& why) override;

  const std::string& path() const { return path_; }
  bool Send(const std::vector<std::byte>& message) { return socket_->Send(message); }
  NcclLink& link() { return link_; }
  bool is_closed() const { return closed_; }
  /// Its link's thread calls nobody any more.
  bool has_ended() const { return closed_ && link_.has_stopped(); }

  /// Sends a transfer's BATCH. Called by the link's thread.
  bool Announce(const NcclTransferPtr& transfer, uint64_t number);

  // Guarded by the borrower's lock.
  bool formed = false;                                      // a communicator
  absl::flat_hash_map<int64_t, NcclTransferPtr> announced;  // by batch, until they are over

 private:
  absl::Status OnMessage(const NcclMessage& message);
  absl::Status OnAnswer(const NcclAnswer& answer);

  NcclBorrower& borrower_;
  const std::string path_;
  const std::shared_ptr<ShmSocket> socket_;
  MessageLimit message_limit_;
  int64_t last_batch_ = 0;  // the link's thread only
  std::atomic<bool> closed_ = false;
  NcclLink link_;  // last: its thread uses everything above
};

}  // namespace swiftcache::engine::transport::nccl
