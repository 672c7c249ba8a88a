// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_donor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/nccl/nccl_donor_channel.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {

NcclDonor::NcclDonor(const Options& options, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock,
                     TransportEvents& events)
    : options_(options), nccl_(nccl), driver_(driver), clock_(clock), events_(events), lane_(driver) {}

NcclDonor::~NcclDonor() { Stop(); }

void NcclDonor::Stop() {
  std::vector<std::shared_ptr<NcclDonorChannel>> channels;
  std::vector<kv::LeaseId> leases;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [lease, grant] : grants_) leases.push_back(lease);
  }
  for (const kv::LeaseId lease : leases) Fence(lease);
  {
    absl::MutexLock lock(&mutex_);
    channels = std::exchange(channels_, {});
  }
  for (const auto& channel : channels) channel->End();
}

absl::Status NcclDonor::CheckSpec(const GrantSpec& spec) const {
  if (spec.offset_bytes < 0 || spec.bytes <= 0 || spec.bytes > options_.arena_bytes ||
      spec.offset_bytes > options_.arena_bytes - spec.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("lease ", spec.lease.value(), " is of ", spec.bytes, " bytes at ",
                                                   spec.offset_bytes, "; the arena has ", options_.arena_bytes));
  }
  return CheckGrantTexts(spec);
}

absl::StatusOr<kv::Epoch> NcclDonor::Grant(const GrantSpec& spec) {
  RETURN_IF_ERROR(CheckSpec(spec));
  absl::MutexLock lock(&mutex_);
  if (Find(spec.lease) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("lease ", spec.lease.value(), " is granted already"));
  }
  auto grant = std::make_shared<GrantState>();
  grant->spec = spec;
  grant->epoch = kv::Epoch(++last_epoch_);
  grants_[spec.lease] = grant;
  return grant->epoch;
}

NcclDonor::GrantPtr NcclDonor::Find(kv::LeaseId lease) {
  auto it = grants_.find(lease);
  return it == grants_.end() ? nullptr : it->second;
}

std::shared_ptr<NcclDonorChannel> NcclDonor::ChannelOf(kv::LeaseId lease) {
  absl::MutexLock lock(&mutex_);
  const GrantPtr grant = Find(lease);
  return grant == nullptr ? nullptr : grant->channel;
}

void NcclDonor::SendRevoke(kv::LeaseId lease, absl::Duration time_left) {
  time_left = std::clamp(time_left, absl::ZeroDuration(), absl::Hours(24));
  {
    absl::MutexLock lock(&mutex_);
    if (const GrantPtr grant = Find(lease)) grant->leave_by = clock_.Now() + time_left;
  }
  if (const auto channel = ChannelOf(lease)) {
    channel->Send(EncodeNcclMessage(NcclRevoke{lease.value(), absl::ToInt64Nanoseconds(time_left)}));
  }
}

void NcclDonor::SendRenewed(kv::LeaseId lease) {
  if (const auto channel = ChannelOf(lease)) channel->Send(EncodeNcclMessage(NcclRenewed{lease.value()}));
}

// `fenced` is the generation: it changes here, under the lock, before the owner touches the memory. Two orders follow.
//
// What is read (loads, streams). End() gives its verdict under the same lock, after the link's thread has seen the
// events of all the batch's sends pass: from then on no kernel reads for it. If the verdict says that the lease held,
// then End() had the lock before this, hence
//     reads of the sends -> their events passed -> verdict -> `fenced` -> return of Fence -> writes of the owner,
// and all that crossed was what was granted. If a write of the owner came before one of the reads, then `fenced` came
// before the verdict, which says so. A send that is under way when its lease is fenced goes on, and reads what the owner
// writes by then: it is harmless, since the verdict is against it; the borrower sees bytes that are none of its own, as
// it does where memory is mapped. It cannot be left out: the other end has posted its receive.
//
// What is written (stores). A link receives stores into memory of its own, and Land() copies them on: it marks the grant
// under the lock where that is not fenced, and takes the mark away when the copy is over (CopyLane::Run). Fence() returns
// when there is no mark, and there will be none after `fenced`. Hence no store is written to memory that is the owner's
// again, and a store that was told OK lies in memory that still was granted then. What a link is still to receive goes to
// the link's own memory, whoever has the lease by then: no fence waits for a borrower that does not send, or for NCCL to
// abort what waits for it.
void NcclDonor::Fence(kv::LeaseId lease) {
  GrantPtr grant;
  {
    absl::MutexLock lock(&mutex_);
    grant = Find(lease);
  }
  if (grant != nullptr) EndGrant(grant);
}

void NcclDonor::EndGrant(const GrantPtr& grant) {
  const kv::LeaseId lease = grant->spec.lease;
  const auto is_quiet = [&grant] { return !grant->copying; };
  std::shared_ptr<NcclDonorChannel> channel;
  {
    absl::MutexLock lock(&mutex_);
    grant->fenced = true;
    mutex_.Await(absl::Condition(&is_quiet));
    if (Find(lease) == grant) grants_.erase(lease);
    channel = std::exchange(grant->channel, nullptr);
  }
  if (channel != nullptr) channel->Send(EncodeNcclMessage(NcclEnded{lease.value(), grant->epoch.value()}));
}

void NcclDonor::AddStats(TransportStats& stats) const {
  stats.received_bytes += received_bytes_.load(std::memory_order_relaxed);
  stats.borrowers_read += static_cast<uint64_t>(sent_bytes_.load(std::memory_order_relaxed));
}

std::shared_ptr<ShmLoopPeer> NcclDonor::Meet(std::shared_ptr<ShmSocket> socket) {
  if (strangers_.size() >= kMaxStrangers) {
    strangers_.front()->socket().Shutdown();  // the loop sees its end
    strangers_.erase(strangers_.begin());
  }
  auto channel = std::make_shared<NcclDonorChannel>(*this, std::move(socket));
  strangers_.push_back(channel.get());
  std::vector<std::shared_ptr<NcclDonorChannel>> ended;  // go without the lock
  absl::MutexLock lock(&mutex_);
  std::erase_if(channels_, [&](const auto& known) {
    if (known->has_ended()) ended.push_back(known);
    return known->has_ended();
  });
  channels_.push_back(channel);
  return channel;
}

absl::StatusOr<NcclDonor::GrantPtr> NcclDonor::Admit(const NcclOpen& open, std::shared_ptr<NcclDonorChannel> channel) {
  absl::MutexLock lock(&mutex_);
  const GrantPtr grant = Find(kv::LeaseId(open.lease));
  if (grant == nullptr || grant->fenced || !IsSameSecret(grant->spec.capability, TextOf(open.capability)) ||
      grant->spec.borrower_instance != TextOf(open.instance) || grant->spec.bytes != open.bytes) {
    return absl::PermissionDeniedError(absl::StrCat("lease ", open.lease, " is not granted to who asks for it"));
  }
  if (grant->channel != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("lease ", open.lease, " is open already"));
  }
  grant->channel = std::move(channel);
  return grant;
}

std::optional<absl::Time> NcclDonor::LeaveBy(const GrantState& grant) const {
  absl::MutexLock lock(&mutex_);
  return grant.leave_by;
}

void NcclDonor::Detach(const GrantPtr& grant) {
  {
    absl::MutexLock lock(&mutex_);
    if (grant->fenced || std::exchange(grant->channel, nullptr) == nullptr) return;
  }
  events_.OnBorrowerGone(grant->spec.lease);
}

void NcclDonor::Release(const GrantPtr& grant) {
  EndGrant(grant);
  events_.OnReleased(grant->spec.lease);
}

void NcclDonor::Begin(Crossing& crossing) {
  absl::MutexLock lock(&mutex_);
  for (const GrantPtr& grant : crossing.grants) {
    crossing.accepted.push_back(grant != nullptr && !grant->fenced ? 1 : 0);
  }
  crossing.held = crossing.accepted;
}

// A lease that was closed and opened again on another channel may be written by the links of both: one after the other,
// and no more by the first one's.
std::vector<NcclDonor::GrantPtr> NcclDonor::BeginCopy(Crossing& crossing) {
  const auto is_quiet = [&crossing] {
    return std::none_of(crossing.grants.begin(), crossing.grants.end(),
                        [](const GrantPtr& grant) { return grant != nullptr && grant->copying; });
  };
  std::vector<GrantPtr> into;
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&is_quiet));
  for (size_t i = 0; i < crossing.grants.size(); ++i) {
    const GrantPtr& grant = crossing.grants[i];
    if (crossing.held[i] == 0) continue;
    crossing.held[i] = !grant->fenced && grant->channel.get() == crossing.channel ? 1 : 0;
    if (crossing.held[i] != 0) into.push_back(grant);
  }
  for (const GrantPtr& grant : into) grant->copying = true;
  return into;
}

void NcclDonor::EndCopy(const std::vector<GrantPtr>& into) {
  absl::MutexLock lock(&mutex_);
  for (const GrantPtr& grant : into) grant->copying = false;
}

void NcclDonor::Land(Crossing& crossing, const NcclGroup& group) {
  const std::vector<GrantPtr> into = BeginCopy(crossing);
  backend::cuda::CopyLane::Copies copies;
  uint64_t from = group.landing;
  for (const NcclGroup::Piece& piece : group.pieces) {
    if (crossing.accepted[piece.lease] == 0) continue;
    if (crossing.held[piece.lease] != 0) {
      copies.runs.push_back({.to = piece.run.address, .from = from, .bytes = piece.run.bytes});
    }
    from += piece.run.bytes;
  }
  const absl::Status copied = copies.runs.empty() ? absl::OkStatus() : lane_.Run(copies, {});
  EndCopy(into);
  if (copied.ok()) return;
  LOG(WARNING) << "what a borrower stored is lost: " << copied.message();
  std::fill(crossing.held.begin(), crossing.held.end(), 0);
}

void NcclDonor::End(Crossing& crossing, bool whole) {
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < crossing.grants.size(); ++i) {
      if (crossing.held[i] != 0 && crossing.grants[i]->fenced) crossing.held[i] = 0;
    }
  }
  if (whole) (crossing.stores ? received_bytes_ : sent_bytes_).fetch_add(crossing.bytes, std::memory_order_relaxed);
}

}  // namespace swiftcache::engine::transport::nccl
