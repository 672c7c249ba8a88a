// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_donor_channel.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/cuda_address.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {
namespace {

// Of a stranger's messages about leases, which may all have been fenced on its way here.
constexpr int kMaxRefused = 8;

}  // namespace

absl::Status NcclDonorChannel::OnDatagram(ShmDatagram datagram) {
  if (!datagram.fds.empty()) return absl::InvalidArgumentError("a borrower sent descriptors");
  ASSIGN_OR_RETURN(const NcclMessage message, ParseNcclMessage(datagram.bytes));
  return OnMessage(message);
}

absl::Status NcclDonorChannel::OnMessage(const NcclMessage& message) {
  if (const auto* open = std::get_if<NcclOpen>(&message)) return OnOpen(*open);
  if (!met_) {
    const bool closes = std::holds_alternative<NcclClose>(message);  // what was refused
    if (closes && ++num_refused_ < kMaxRefused) return absl::OkStatus();
    return absl::InvalidArgumentError("a peer speaks before it has opened a lease");
  }
  if (const auto* batch = std::get_if<NcclBatchMessage>(&message)) return OnBatch(*batch);
  RETURN_IF_ERROR(CheckRate());
  if (const auto* join = std::get_if<NcclJoin>(&message)) return OnJoin(*join);
  if (const auto* broken = std::get_if<NcclBroken>(&message)) {
    link_->Break(broken->number);
    return absl::OkStatus();
  }
  return OnLeaseMessage(message);
}

absl::Status NcclDonorChannel::CheckRate() {
  if (message_limit_.Allow(donor_.clock_.Now(), static_cast<int64_t>(open_.size()))) return absl::OkStatus();
  return absl::InvalidArgumentError("a borrower floods its channel");
}

void NcclDonorChannel::OnClosed(const absl::Status&) {
  std::erase(donor_.strangers_, this);
  for (const auto& [lease, grant] : std::exchange(open_, {})) donor_.Detach(grant);
  if (link_ != nullptr) link_->StopSoon();
  closed_ = true;
}

// Threads are only for who has shown that it may come in.
absl::Status NcclDonorChannel::OnOpen(const NcclOpen& open) {
  if (met_) RETURN_IF_ERROR(CheckRate());
  const absl::StatusOr<NcclDonor::GrantPtr> grant = donor_.Admit(open, shared_from_this());
  if (!grant.ok()) {
    const bool is_open = absl::IsAlreadyExists(grant.status());
    Send(EncodeNcclMessage(
        NcclRefused{.lease = open.lease, .reason = is_open ? LeaseRefusal::kAlreadyOpen : LeaseRefusal::kNotGranted}));
    return met_ || ++num_refused_ < kMaxRefused ? absl::OkStatus() : grant.status();
  }
  if (!std::exchange(met_, true)) {
    std::erase(donor_.strangers_, this);
    NcclLink::Hooks hooks = {.formed = [] {},
                             .broken =
                                 [this](uint64_t number, const absl::Status& why) {
                                   LOG(WARNING)
                                       << "communicator " << number << " of a borrower is given up: " << why.message();
                                   Send(EncodeNcclMessage(NcclBroken{number}));
                                 }};
    link_ = std::make_unique<NcclLink>(NcclLink::Options{.rank = 1, .patience = NcclDonor::kBorrowerPatience},
                                       std::move(hooks), donor_.nccl_, donor_.driver_, donor_.clock_);
  }
  open_[open.lease] = *grant;
  Send(EncodeNcclMessage(NcclGranted{open.lease, (*grant)->epoch.value()}));
  if (const auto leave_by = donor_.LeaveBy(**grant)) {
    const absl::Duration time_left = std::max(*leave_by - donor_.clock_.Now(), absl::ZeroDuration());
    Send(EncodeNcclMessage(NcclRevoke{open.lease, absl::ToInt64Nanoseconds(time_left)}));
  }
  donor_.events_.OnBorrowerOpened((*grant)->spec.lease);
  return absl::OkStatus();
}

absl::Status NcclDonorChannel::OnJoin(const NcclJoin& join) {
  if (join.number <= last_number_) {
    return absl::InvalidArgumentError(
        absl::StrCat("JOIN of communicator ", join.number, " comes after that of ", last_number_));
  }
  last_number_ = join.number;
  link_->Join(join.number, join.id);
  return absl::OkStatus();
}

// Of leases that are open no more a borrower may speak for a while: it has not heard yet.
absl::Status NcclDonorChannel::OnLeaseMessage(const NcclMessage& message) {
  if (const auto* renew = std::get_if<NcclRenew>(&message)) {
    if (open_.contains(renew->lease)) donor_.events_.OnRenewal(kv::LeaseId(renew->lease), renew->heat);
    return absl::OkStatus();
  }
  if (const auto* close = std::get_if<NcclClose>(&message)) {
    if (const auto closed = open_.extract(close->lease)) donor_.Detach(closed.mapped());
    return absl::OkStatus();
  }
  const auto* release = std::get_if<NcclRelease>(&message);
  if (release == nullptr) return absl::InvalidArgumentError("a borrower sent a message that only donors send");
  if (const auto released = open_.extract(release->lease)) donor_.Release(released.mapped());
  return absl::OkStatus();
}

std::vector<NcclDonor::GrantPtr> NcclDonorChannel::GrantsOf(const NcclBatchMessage& message) const {
  std::vector<NcclDonor::GrantPtr> grants;
  for (const int64_t lease : message.leases) {
    const auto it = open_.find(lease);
    grants.push_back(it == open_.end() ? nullptr : it->second);
  }
  return grants;
}

// A batch whose communicator is at its end already is refused whole: nothing is sent.
absl::Status NcclDonorChannel::OnBatch(const NcclBatchMessage& message) {
  if (message.head.batch <= last_batch_ || last_number_ == 0 || message.head.number != last_number_ ||
      num_crossing_ >= kMaxNcclBatches) {
    return absl::InvalidArgumentError(absl::StrCat("BATCH ", message.head.batch, " of communicator ",
                                                   message.head.number, " comes after ", last_batch_, " of ",
                                                   last_number_, ", with ", num_crossing_.load(), " on their way"));
  }
  last_batch_ = message.head.batch;
  // Shared: by what its link calls.
  const auto crossing =
      std::make_shared<NcclDonor::Crossing>(NcclDonor::Crossing{.batch = message.head.batch,
                                                                .stores = message.head.kind == NcclKind::kStore,
                                                                .channel = this,
                                                                .grants = GrantsOf(message)});
  std::vector<int64_t> lease_bytes;
  for (const auto& grant : crossing->grants) lease_bytes.push_back(grant == nullptr ? 0 : grant->spec.bytes);
  RETURN_IF_ERROR(CheckNcclPieces(message, lease_bytes));
  donor_.Begin(*crossing);
  for (const NcclPiece& piece : message.pieces) {
    if (crossing->accepted[piece.lease] != 0) crossing->bytes += piece.bytes_of_all(message.head);
  }
  const auto address = [&](size_t i, int64_t arrival) -> uint64_t {
    const NcclPiece& piece = message.pieces[i];
    const NcclDonor::GrantPtr& grant = crossing->grants[piece.lease];
    if (grant == nullptr) return 0;  // refused
    return backend::cuda::ToNumber(donor_.options_.arena + grant->spec.offset_bytes + piece.offset +
                                   arrival % message.head.layers * message.head.layer_stride);
  };
  auto batch = std::make_shared<NcclBatch>(crossing->stores ? NcclDirection::kReceive : NcclDirection::kSend,
                                           MakeNcclGroups(message, address));
  batch->number = message.head.number;
  batch->accepted = crossing->accepted;
  batch->admitted = batch->concluded = true;
  if (crossing->stores) batch->land = [this, crossing](const NcclGroup& group) { donor_.Land(*crossing, group); };
  batch->ended = [this, crossing](bool whole) { OnCrossingEnded(*crossing, whole); };
  ++num_crossing_;
  Send(EncodeNcclAnswer({.done = false, .batch = crossing->batch, .leases = crossing->accepted}));
  if (!link_->Post(batch)) OnCrossingEnded(*crossing, false);
  return absl::OkStatus();
}

// The link's thread.
void NcclDonorChannel::OnCrossingEnded(NcclDonor::Crossing& crossing, bool whole) {
  donor_.End(crossing, whole);
  --num_crossing_;
  if (whole) Send(EncodeNcclAnswer({.done = true, .batch = crossing.batch, .leases = crossing.held}));
}

}  // namespace swiftcache::engine::transport::nccl
