// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_borrower.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/nccl/nccl_borrower_channel.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {

NcclBorrower::NcclBorrower(std::string instance_id, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock,
                           TransportEvents& events)
    : instance_id_(std::move(instance_id)), nccl_(nccl), driver_(driver), clock_(clock), events_(events) {}

void NcclBorrower::Start(ShmLoop& loop) {
  loop_ = &loop;
  thread_ = std::thread([this] { Run(); });
}

// The links last: while a channel is there, its link's thread may call it.
void NcclBorrower::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  std::vector<ChannelPtr> channels;
  {
    absl::MutexLock lock(&mutex_);
    channels = std::exchange(channels_, {});
  }
  for (const ChannelPtr& channel : channels) channel->link().Stop();
  absl::MutexLock lock(&mutex_);
  leases_.clear();
  jobs_.clear();
}

void NcclBorrower::Run() {
  for (;;) {
    std::function<void()> job;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this] {
        mutex_.AssertHeld();
        return stopping_ || !jobs_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

void NcclBorrower::TellLater(const NcclLeasePtr& lease, Event event) {
  Later([this, lease, event = std::move(event)] { Tell(*lease, event); });
}

void NcclBorrower::Tell(NcclLease& lease, const Event& event) {
  {
    absl::MutexLock lock(&mutex_);
    if (lease.closed) return;
    ++lease.telling;
  }
  event(events_);
  absl::MutexLock lock(&mutex_);
  --lease.telling;
}

int64_t NcclBorrower::num_leases() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(leases_.size());
}

NcclLeasePtr NcclBorrower::Find(kv::LeaseId id) const {
  const auto it = leases_.find(id);
  return it == leases_.end() ? nullptr : it->second;
}

// A donor may speak of its own leases only.
NcclLeasePtr NcclBorrower::FindOf(const NcclBorrowerChannel& channel, kv::LeaseId id) const {
  NcclLeasePtr lease = Find(id);
  return lease != nullptr && lease->channel.get() == &channel ? lease : nullptr;
}

std::vector<NcclLeasePtr> NcclBorrower::LeasesOf(const NcclBorrowerChannel& channel) const {
  std::vector<NcclLeasePtr> leases;
  for (const auto& [id, lease] : leases_) {
    if (lease->channel.get() == &channel) leases.push_back(lease);
  }
  return leases;
}

// --- opening

void NcclBorrower::Open(const OpenSpec& spec) {
  CHECK_GT(spec.bytes, 0);
  CHECK_GT(spec.store_bytes, 0);
  auto lease = std::make_shared<NcclLease>(spec);
  absl::MutexLock lock(&mutex_);
  if (!leases_.emplace(spec.lease, lease).second) return;  // open already
  Later([this, lease] { Dial(lease); });
}

absl::StatusOr<NcclBorrower::ChannelPtr> NcclBorrower::ChannelTo(const std::string& path) {
  std::vector<ChannelPtr> ended;  // go without the lock
  {
    absl::MutexLock lock(&mutex_);
    std::erase_if(channels_, [&](const ChannelPtr& channel) {
      if (channel->has_ended()) ended.push_back(channel);
      return channel->has_ended();
    });
    for (const ChannelPtr& channel : channels_) {
      if (channel->path() == path && !channel->is_closed()) return channel;
    }
  }
  ASSIGN_OR_RETURN(std::shared_ptr<ShmSocket> socket, ShmSocket::Connect(path));
  auto channel = std::make_shared<NcclBorrowerChannel>(*this, path, std::move(socket));
  {
    absl::MutexLock lock(&mutex_);
    channels_.push_back(channel);
  }
  const absl::Status heard = loop_->Add(channel);
  if (heard.ok()) return channel;
  channel->OnClosed(heard);
  return heard;
}

void NcclBorrower::Dial(const NcclLeasePtr& lease) {
  const OpenSpec& spec = lease->spec;
  const auto fail = [&](const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    EndLease(lease, why);
  };
  if (static_cast<int64_t>(spec.capability.size()) > kMaxWireText || spec.store_bytes > kMaxNcclPieceBytes) {
    return fail(absl::InvalidArgumentError(absl::StrCat(
        "lease ", spec.lease.value(), " has a capability of ", spec.capability.size(), " bytes and stores of ",
        spec.store_bytes, "; at most ", kMaxWireText, " and ", kMaxNcclPieceBytes, " are allowed")));
  }
  const absl::StatusOr<ChannelPtr> channel = ChannelTo(spec.channel);
  if (!channel.ok()) return fail(channel.status());
  {
    absl::MutexLock lock(&mutex_);
    if (lease->closed) return;
    lease->channel = *channel;
  }
  NcclOpen open = {.lease = spec.lease.value(), .bytes = spec.bytes};
  SetWireText(open.capability, spec.capability);
  SetWireText(open.instance, instance_id_);
  (*channel)->Send(EncodeNcclMessage(open));
  bool is_unwanted = false;
  {
    absl::MutexLock lock(&mutex_);
    lease->asked_for = true;
    is_unwanted = lease->closed && !lease->released;
  }
  if (is_unwanted) (*channel)->Send(EncodeNcclMessage(NcclClose{spec.lease.value()}));
  if ((*channel)->is_closed()) fail(absl::UnavailableError("the donor's channel was closed"));
}

absl::Status NcclBorrower::OnGranted(NcclBorrowerChannel& channel, const NcclGranted& granted) {
  absl::MutexLock lock(&mutex_);
  const NcclLeasePtr lease = FindOf(channel, kv::LeaseId(granted.lease));
  if (lease == nullptr || lease->state != NcclLease::State::kOpening) return absl::OkStatus();
  if (granted.epoch != lease->spec.epoch.value()) {
    return absl::InvalidArgumentError(absl::StrCat("lease ", granted.lease, " is granted at epoch ", granted.epoch,
                                                   "; ", lease->spec.epoch.value(), " was wanted"));
  }
  lease->state = NcclLease::State::kGranted;
  if (channel.formed) {
    SetOpen(lease);
  } else {
    channel.link().Form();
  }
  return absl::OkStatus();
}

void NcclBorrower::SetOpen(const NcclLeasePtr& lease) {
  lease->state = NcclLease::State::kOpen;
  const LeaseView view = {.bytes = lease->spec.bytes,
                          .word = {.word = &lease->word, .granted = lease->spec.epoch.value()}};
  TellLater(lease, [id = lease->spec.lease, view](TransportEvents& events) { events.OnOpened(id, view); });
}

void NcclBorrower::OnFormed(NcclBorrowerChannel& channel) {
  absl::MutexLock lock(&mutex_);
  channel.formed = true;
  for (const NcclLeasePtr& lease : LeasesOf(channel)) {
    if (lease->state == NcclLease::State::kGranted) SetOpen(lease);
  }
}

// Leases that are granted wait for the next communicator, unless it was their own that did not come about. For those that
// are open it is made at once, too: it may take longer than a batch that asks for it is waited for.
void NcclBorrower::OnBroken(NcclBorrowerChannel& channel, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  const bool was_formed = std::exchange(channel.formed, false);
  bool is_wanted = false;
  for (const NcclLeasePtr& lease : LeasesOf(channel)) {
    const bool is_granted = lease->state == NcclLease::State::kGranted;
    if (is_granted && !was_formed) EndLease(lease, why);
    is_wanted = is_wanted || is_granted || (lease->state == NcclLease::State::kOpen && !lease->abandoned);
  }
  if (was_formed && is_wanted) channel.link().Form();
}

// --- while it is open

NcclBorrower::ChannelPtr NcclBorrower::OpenChannelOf(kv::LeaseId id) const {
  absl::MutexLock lock(&mutex_);
  const NcclLeasePtr lease = Find(id);
  return lease == nullptr || lease->state != NcclLease::State::kOpen ? nullptr : lease->channel;
}

void NcclBorrower::SendRenewal(kv::LeaseId lease, int64_t heat) {
  if (const auto channel = OpenChannelOf(lease)) channel->Send(EncodeNcclMessage(NcclRenew{lease.value(), heat}));
}

void NcclBorrower::SendRelease(kv::LeaseId id) {
  const auto channel = OpenChannelOf(id);
  if (channel == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    if (const NcclLeasePtr lease = Find(id)) lease->released = true;
  }
  channel->Send(EncodeNcclMessage(NcclRelease{id.value()}));
}

void NcclBorrower::TellGranted(const NcclBorrowerChannel& channel, kv::LeaseId id, Event event) {
  absl::MutexLock lock(&mutex_);
  const NcclLeasePtr lease = FindOf(channel, id);
  if (lease == nullptr) return;
  if (lease->state != NcclLease::State::kGranted && lease->state != NcclLease::State::kOpen) return;
  TellLater(lease, std::move(event));
}

// --- the end

void NcclBorrower::EndLease(const NcclLeasePtr& lease, const absl::Status& why) {
  if (lease->state == NcclLease::State::kEnded) return;
  const bool opened = lease->state == NcclLease::State::kOpen;
  lease->state = NcclLease::State::kEnded;
  lease->word.fetch_add(1);
  (void)MarkLost(*lease);
  const kv::LeaseId id = lease->spec.lease;
  if (!opened) {
    TellLater(lease, [id, why](TransportEvents& events) { events.OnOpened(id, why); });
  } else if (!lease->released) {
    TellLater(lease, [id](TransportEvents& events) { events.OnDonorGone(id); });
  }
}

void NcclBorrower::OnFenced(const NcclBorrowerChannel& channel, const NcclEnded& ended) {
  absl::MutexLock lock(&mutex_);
  const NcclLeasePtr lease = FindOf(channel, kv::LeaseId(ended.lease));
  if (lease == nullptr || lease->spec.epoch.value() != ended.epoch) return;
  EndLease(lease, absl::PermissionDeniedError("the donor fenced the lease"));
}

void NcclBorrower::OnRefused(const NcclBorrowerChannel& channel, kv::LeaseId id, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  const NcclLeasePtr lease = FindOf(channel, id);
  if (lease != nullptr && lease->state == NcclLease::State::kOpening) EndLease(lease, why);
}

void NcclBorrower::OnClosed(NcclBorrowerChannel& channel, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  for (const NcclLeasePtr& lease : LeasesOf(channel)) EndLease(lease, why);
}

// A batch brings the pieces of several leases: the others' go on arriving where the donor lives, and are lost with this
// one's where it does not. What is still being sent from here may be read though its store is answered: it goes to a
// lease that nobody believes any more.
void NcclBorrower::Abandon(kv::LeaseId id) {
  ChannelPtr channel;
  {
    absl::MutexLock lock(&mutex_);
    const NcclLeasePtr lease = Find(id);
    if (lease == nullptr) return;
    lease->abandoned = true;
    lease->word.fetch_add(1);
    if (MarkLost(*lease)) channel = lease->channel;
    for (const NcclTransferPtr& transfer : transfers_) {
      AnswerStores(*transfer, lease.get(), absl::UnavailableError("the lease was given up"));
    }
  }
  if (channel != nullptr) channel->link().Hurry();
}

// Of a lease that is just being asked for Dial sends CLOSE: it must not come before OPEN.
void NcclBorrower::Close(kv::LeaseId id) {
  NcclLeasePtr lease;
  bool tells = false;
  {
    absl::MutexLock lock(&mutex_);
    lease = Find(id);
    if (lease == nullptr) return;
    leases_.erase(id);
    lease->closed = true;
    tells = lease->asked_for && !lease->released;
    const auto is_quiet = [&lease] { return lease->telling == 0; };
    mutex_.Await(absl::Condition(&is_quiet));
  }
  if (tells) lease->channel->Send(EncodeNcclMessage(NcclClose{id.value()}));
}

}  // namespace swiftcache::engine::transport::nccl
