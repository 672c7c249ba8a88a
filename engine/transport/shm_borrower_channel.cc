// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_borrower_channel.h"

#include "absl/strings/str_cat.h"

namespace swiftcache::engine::transport {
namespace {

absl::Status Refused(kv::LeaseId lease, LeaseRefusal reason) {
  return absl::PermissionDeniedError(absl::StrCat("the donor of lease ", lease.value(), " refuses it: ",
                                                  reason == LeaseRefusal::kAlreadyOpen
                                                      ? "its channel is open already"
                                                      : "it is not granted, or not to this engine's instance"));
}

}  // namespace

absl::Status ShmBorrowerChannel::OnMessage(ShmMessage message, std::vector<memory::UniqueFd> fds) {
  return granted_ ? OnLaterMessage(message, fds) : OnFirstMessage(std::move(message), std::move(fds));
}

absl::Status ShmBorrowerChannel::OnFirstMessage(ShmMessage message, std::vector<memory::UniqueFd> fds) {
  if (const auto* refuse = std::get_if<ShmRefuse>(&message)) return Refused(lease_->spec.lease, refuse->reason);
  auto* const grant = std::get_if<ShmGrantMessage>(&message);
  if (grant == nullptr) return absl::InvalidArgumentError("a donor's first message is neither GRANT nor REFUSE");
  granted_ = true;
  borrower_.OnGrant(lease_, std::move(*grant), std::move(fds));
  return absl::OkStatus();
}

absl::Status ShmBorrowerChannel::OnLaterMessage(const ShmMessage& message, const std::vector<memory::UniqueFd>& fds) {
  if (!fds.empty()) return absl::InvalidArgumentError("a donor sent descriptors after its GRANT");
  if (const auto* stored = std::get_if<ShmStored>(&message)) {
    return borrower_.OnStored(*lease_, Ticket(stored->ticket));
  }
  if (!message_limit_.Allow(borrower_.clock_.Now())) return absl::InvalidArgumentError("a donor floods its channel");
  const kv::LeaseId lease = lease_->spec.lease;
  if (const auto* revoke = std::get_if<ShmRevoke>(&message)) {
    const absl::Duration time_left = absl::Nanoseconds(revoke->time_left_ns);
    borrower_.Notify(*lease_, [&](TransportEvents& events) { events.OnRevoked(lease, time_left); });
    return absl::OkStatus();
  }
  if (!std::holds_alternative<ShmRenewed>(message)) {
    return absl::InvalidArgumentError("a donor sent a message that only borrowers send");
  }
  borrower_.Notify(*lease_, [&](TransportEvents& events) { events.OnRenewed(lease); });
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::transport
