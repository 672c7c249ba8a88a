// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_borrower_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {
namespace {

absl::Status Refused(const NcclRefused& refused) {
  return absl::PermissionDeniedError(absl::StrCat("the donor of lease ", refused.lease, " refuses it: ",
                                                  refused.reason == LeaseRefusal::kAlreadyOpen
                                                      ? "it is open already"
                                                      : "it is not granted, or not to this engine's instance"));
}

}  // namespace

NcclBorrowerChannel::NcclBorrowerChannel(NcclBorrower& borrower, std::string path, std::shared_ptr<ShmSocket> socket)
    : borrower_(borrower),
      path_(std::move(path)),
      socket_(std::move(socket)),
      link_({.rank = 0, .patience = Transport::kReadPatience},
            {.join =
                 [this](uint64_t number, const NcclUniqueId& id) {
                   return Send(EncodeNcclMessage(NcclJoin{number, id}));
                 },
             .formed = [this] { borrower_.OnFormed(*this); },
             .broken =
                 [this](uint64_t number, const absl::Status& why) {
                   LOG(WARNING) << "communicator " << number << " to " << path_ << " is given up: " << why.message();
                   Send(EncodeNcclMessage(NcclBroken{number}));
                   borrower_.OnBroken(*this, why);
                 }},
            borrower.nccl_, borrower.driver_, borrower.clock_) {}

absl::Status NcclBorrowerChannel::OnDatagram(ShmDatagram datagram) {
  if (!datagram.fds.empty()) return absl::InvalidArgumentError("a donor sent descriptors");
  ASSIGN_OR_RETURN(const NcclMessage message, ParseNcclMessage(datagram.bytes));
  return OnMessage(message);
}

absl::Status NcclBorrowerChannel::OnMessage(const NcclMessage& message) {
  if (const auto* answer = std::get_if<NcclAnswer>(&message)) return OnAnswer(*answer);
  if (const auto* granted = std::get_if<NcclGranted>(&message)) return borrower_.OnGranted(*this, *granted);
  if (const auto* ended = std::get_if<NcclEnded>(&message)) {
    borrower_.OnFenced(*this, *ended);
    return absl::OkStatus();
  }
  if (const auto* refused = std::get_if<NcclRefused>(&message)) {
    borrower_.OnRefused(*this, kv::LeaseId(refused->lease), Refused(*refused));
    return absl::OkStatus();
  }
  if (!message_limit_.Allow(borrower_.clock_.Now(), borrower_.num_leases()))
    return absl::InvalidArgumentError("a donor floods its channel");
  if (const auto* broken = std::get_if<NcclBroken>(&message)) {
    link_.Break(broken->number);
    return absl::OkStatus();
  }
  if (const auto* revoke = std::get_if<NcclRevoke>(&message)) {
    const kv::LeaseId lease(revoke->lease);
    const absl::Duration left = absl::Nanoseconds(revoke->time_left_ns);
    borrower_.TellGranted(*this, lease, [lease, left](TransportEvents& events) { events.OnRevoked(lease, left); });
    return absl::OkStatus();
  }
  const auto* renewed = std::get_if<NcclRenewed>(&message);
  if (renewed == nullptr) return absl::InvalidArgumentError("a donor sent a message that only borrowers send");
  const kv::LeaseId lease(renewed->lease);
  borrower_.TellGranted(*this, lease, [lease](TransportEvents& events) { events.OnRenewed(lease); });
  return absl::OkStatus();
}

// Those of a batch that was lost meanwhile may still come.
absl::Status NcclBorrowerChannel::OnAnswer(const NcclAnswer& answer) {
  const NcclTransferPtr transfer = borrower_.FindAnnounced(*this, answer.batch);
  if (transfer == nullptr) {
    if (message_limit_.Allow(borrower_.clock_.Now(), borrower_.num_leases())) return absl::OkStatus();
    return absl::InvalidArgumentError("a donor floods its channel");
  }
  if (answer.leases.size() != transfer->leases.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a donor answers about ", answer.leases.size(), " leases of batch ",
                                                   answer.batch, ", which has ", transfer->leases.size()));
  }
  borrower_.NoteAnswer(*transfer, answer);
  const bool asked = answer.done ? link_.Conclude(*transfer->batch) : link_.Admit(*transfer->batch, answer.leases);
  if (asked) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a donor's answer about batch ", answer.batch, " is out of turn"));
}

void NcclBorrowerChannel::OnClosed(const absl::Status& why) {
  closed_ = true;
  link_.StopSoon();
  borrower_.OnClosed(*this, why);
}

bool NcclBorrowerChannel::Announce(const NcclTransferPtr& transfer, uint64_t number) {
  transfer->message.head.batch = ++last_batch_;
  transfer->message.head.number = number;
  borrower_.NoteAnnounced(*this, last_batch_, transfer);
  return Send(EncodeNcclBatch(transfer->message));
}

}  // namespace swiftcache::engine::transport::nccl
