// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_donor_channel.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::engine::transport {

absl::Status ShmDonorChannel::OnMessage(ShmMessage message, std::vector<memory::UniqueFd> fds) {
  if (const auto* hello = std::get_if<ShmHello>(&message)) return OnHello(*hello, std::move(fds));
  if (grant_ == nullptr) return absl::InvalidArgumentError("a peer speaks before its HELLO, or after its RELEASE");
  if (!fds.empty()) return absl::InvalidArgumentError("a borrower sent descriptors after its HELLO");
  if (const auto* store = std::get_if<ShmStore>(&message)) return OnStore(*store);
  if (const auto* renew = std::get_if<ShmRenew>(&message)) return OnRenew(*renew);
  if (std::holds_alternative<ShmRelease>(message)) return OnRelease();
  return absl::InvalidArgumentError("a borrower sent a message that only donors send");
}

void ShmDonorChannel::OnClosed(const absl::Status&) {
  std::erase(donor_.strangers_, this);
  donor_.Detach(*this, std::exchange(grant_, nullptr));
}

// Memory is mapped only for who has shown that it may come in.
absl::Status ShmDonorChannel::OnHello(const ShmHello& hello, std::vector<memory::UniqueFd> fds) {
  if (std::exchange(met_, true)) return absl::InvalidArgumentError("a peer sent HELLO twice");
  std::erase(donor_.strangers_, this);
  const size_t wanted = donor_.memory_.num_staging_fds();
  if (fds.size() != wanted || hello.staging_bytes % sysconf(_SC_PAGESIZE) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("HELLO brings ", fds.size(), " descriptors and ",
                                                   hello.staging_bytes, " bytes of staging memory; ", wanted,
                                                   " and whole pages are wanted"));
  }
  ASSIGN_OR_RETURN(grant_, Admit(hello));
  borrower_ = grant_->spec.borrower_instance;
  donor_.ShowLater(
      {.channel = shared_from_this(), .grant = grant_, .staging_bytes = hello.staging_bytes, .fds = std::move(fds)});
  return absl::OkStatus();
}

absl::StatusOr<ShmDonor::GrantPtr> ShmDonorChannel::Admit(const ShmHello& hello) {
  absl::StatusOr<ShmDonor::GrantPtr> grant = donor_.Admit(hello, *this);
  if (grant.ok()) return grant;
  const bool open = grant.status().code() == absl::StatusCode::kAlreadyExists;
  socket_->Send(EncodeShmMessage(ShmRefuse{open ? LeaseRefusal::kAlreadyOpen : LeaseRefusal::kNotGranted}));
  return grant;
}

// A second copy of a store, or a late one, would bring what its staging memory holds by now: of another block.
absl::Status ShmDonorChannel::OnStore(const ShmStore& store) {
  if (last_store_ && store.ticket <= *last_store_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a borrower's store ", store.ticket, " comes after its store ", *last_store_));
  }
  last_store_ = store.ticket;
  return donor_.Enqueue(grant_, *this, store);
}

absl::Status ShmDonorChannel::OnRenew(const ShmRenew& renew) {
  if (!message_limit_.Allow(donor_.clock_.Now())) return absl::InvalidArgumentError("a borrower floods its channel");
  donor_.events_.OnRenewal(grant_->spec.lease, renew.heat);
  return absl::OkStatus();
}

absl::Status ShmDonorChannel::OnRelease() {
  const kv::LeaseId lease = std::exchange(grant_, nullptr)->spec.lease;  // from here on its end is no news
  donor_.Fence(lease);
  donor_.events_.OnReleased(lease);
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::transport
