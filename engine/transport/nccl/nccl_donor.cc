// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_donor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/nccl/nccl_donor_channel.h"

namespace swiftcache::engine::transport::nccl {

NcclDonor::NcclDonor(const Options& options, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock,
                     TransportEvents& events)
    : options_(options), nccl_(nccl), driver_(driver), clock_(clock), events_(events) {}

NcclDonor::~NcclDonor() { Stop(); }

void NcclDonor::Stop() {
  std::vector<std::shared_ptr<NcclDonorChannel>> channels;
  std::vector<kv::LeaseId> leases;
  {
    TimedMutexLock lock(&mutex_);
    for (const auto& [lease, grant] : grants_) leases.push_back(lease);
  }
  for (const kv::LeaseId lease : leases) Fence(lease);
  {
    TimedMutexLock lock(&mutex_);
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
  TimedMutexLock lock(&mutex_);
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
  TimedMutexLock lock(&mutex_);
  const GrantPtr grant = Find(lease);
  return grant == nullptr ? nullptr : grant->channel;
}

void NcclDonor::SendRevoke(kv::LeaseId lease, absl::Duration time_left) {
  time_left = std::clamp(time_left, absl::ZeroDuration(), absl::Hours(24));
  {
    TimedMutexLock lock(&mutex_);
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
// What is written (stores). Begin() counts a batch in under the lock where the lease is not fenced, End() counts it out
// when its events have passed, or when its communicator is aborted and its stream is gone: from then on no kernel writes
// for it. Fence() returns when none is counted in, and none can be after `fenced`. Hence no store is written to memory
// that is the owner's again, and a store that was told OK lies in memory that still was granted then.
void NcclDonor::Fence(kv::LeaseId lease) {
  GrantPtr grant;
  bool first = false;
  {
    TimedMutexLock lock(&mutex_);
    grant = Find(lease);
    if (grant == nullptr) return;
    first = !std::exchange(grant->fenced, true);
  }
  AwaitReceived(grant);
  if (!first) return;
  std::shared_ptr<NcclDonorChannel> channel;
  {
    TimedMutexLock lock(&mutex_);
    grants_.erase(lease);
    channel = std::exchange(grant->channel, nullptr);
  }
  if (channel != nullptr) channel->Send(EncodeNcclMessage(NcclEnded{lease.value(), grant->epoch.value()}));
}

// A borrower that sends needs a few milliseconds for what it has announced. For one that does not, its communicator is
// aborted, and all else that it has under way is lost. One that came after it is not concerned. Of leases that were to
// be left at one time the fences wait together, however many they are.
void NcclDonor::AwaitReceived(const GrantPtr& grant) {
  const auto has_received = [&grant] { return grant->receiving == 0; };
  std::shared_ptr<NcclDonorChannel> receiver;
  uint64_t number = 0;
  {
    TimedMutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    const absl::Time until = std::min(now, grant->leave_by.value_or(now)) + options_.fence_patience;
    if (mutex_.AwaitWithTimeout(absl::Condition(&has_received), until - now)) return;
    receiver = grant->receiver;
    number = grant->number;
  }
  receiver->BreakLink(number);
  TimedMutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&has_received));
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
  TimedMutexLock lock(&mutex_);
  std::erase_if(channels_, [&](const auto& known) {
    if (known->has_ended()) ended.push_back(known);
    return known->has_ended();
  });
  channels_.push_back(channel);
  return channel;
}

absl::StatusOr<NcclDonor::GrantPtr> NcclDonor::Admit(const NcclOpen& open, std::shared_ptr<NcclDonorChannel> channel) {
  TimedMutexLock lock(&mutex_);
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
  TimedMutexLock lock(&mutex_);
  return grant.leave_by;
}

void NcclDonor::Detach(const GrantPtr& grant) {
  {
    TimedMutexLock lock(&mutex_);
    if (grant->fenced || std::exchange(grant->channel, nullptr) == nullptr) return;
  }
  events_.OnBorrowerGone(grant->spec.lease);
}

// What is still received comes, or its link gives it up: the loop's thread does not wait for it, since it has other
// borrowers to hear. An owner that cannot wait fences.
void NcclDonor::Release(const GrantPtr& grant) {
  {
    TimedMutexLock lock(&mutex_);
    grant->fenced = true;
    grant->released = grant->receiving > 0;
    if (grant->released) return;
  }
  EndRelease(grant);
}

void NcclDonor::EndRelease(const GrantPtr& grant) {
  const kv::LeaseId lease = grant->spec.lease;
  std::shared_ptr<NcclDonorChannel> channel;
  {
    TimedMutexLock lock(&mutex_);
    if (Find(lease) == grant) grants_.erase(lease);
    channel = std::exchange(grant->channel, nullptr);
  }
  if (channel != nullptr) channel->Send(EncodeNcclMessage(NcclEnded{lease.value(), grant->epoch.value()}));
  events_.OnReleased(lease);
}

std::vector<uint8_t> NcclDonor::Begin(std::span<const GrantPtr> grants, bool stores,
                                      const std::shared_ptr<NcclDonorChannel>& channel, uint64_t number) {
  std::vector<uint8_t> accepted;
  TimedMutexLock lock(&mutex_);
  for (const GrantPtr& grant : grants) {
    const bool holds = grant != nullptr && !grant->fenced;
    accepted.push_back(holds ? 1 : 0);
    if (!holds || !stores) continue;
    ++grant->receiving;
    grant->receiver = channel;
    grant->number = number;
  }
  return accepted;
}

std::vector<uint8_t> NcclDonor::End(std::span<const GrantPtr> grants, std::span<const uint8_t> accepted, bool stores,
                                    int64_t bytes) {
  std::vector<uint8_t> held;
  std::vector<GrantPtr> released;
  {
    TimedMutexLock lock(&mutex_);
    for (size_t i = 0; i < grants.size(); ++i) {
      held.push_back(accepted[i] != 0 && !grants[i]->fenced ? 1 : 0);
      if (accepted[i] == 0 || !stores || --grants[i]->receiving > 0) continue;
      grants[i]->receiver = nullptr;
      if (std::exchange(grants[i]->released, false)) released.push_back(grants[i]);
    }
  }
  (stores ? received_bytes_ : sent_bytes_).fetch_add(bytes, std::memory_order_relaxed);
  for (const GrantPtr& grant : released) EndRelease(grant);
  return held;
}

}  // namespace swiftcache::engine::transport::nccl
