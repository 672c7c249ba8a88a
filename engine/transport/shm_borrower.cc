// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_borrower.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/transport/shm_borrower_channel.h"
#include "engine/transport/shm_message.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

constexpr int64_t kStoresInStaging = 4;
constexpr int64_t kLeastStagingBytes = kMiB;  // so that small stores are on their way by the dozen

// What a lease that is at its end has in the ring, which is free again: a donor who still copies it copies for nobody.
std::deque<ShmLease::StoreJob> TakeUnanswered(ShmLease& lease) {
  for (const ShmLease::StoreJob& store : lease.unanswered) lease.staging->ring.Free(store.staging_offset);
  return std::exchange(lease.unanswered, {});
}

template <typename T>
T Take(std::deque<T>& queue) {
  T first = std::move(queue.front());
  queue.pop_front();
  return first;
}

}  // namespace

ShmBorrower::ShmBorrower(const Options& options, PeerMemory& memory, const Clock& clock, TransportEvents& events)
    : options_(options), memory_(memory), clock_(clock), events_(events), link_(options.link) {}

void ShmBorrower::Start(ShmLoop& loop) {
  loop_ = &loop;
  thread_ = std::thread([this] { Run(); });
}

void ShmBorrower::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  absl::MutexLock lock(&mutex_);
  leases_.clear();  // with their channels
  to_map_.clear();
  to_unmap_.clear();
}

void ShmBorrower::Open(const OpenSpec& spec) {
  CHECK_GT(spec.bytes, 0);
  CHECK_GT(spec.store_bytes, 0);
  auto lease = std::make_shared<ShmLease>(spec);
  absl::MutexLock lock(&mutex_);
  if (!leases_.emplace(spec.lease, lease).second) return;  // open already
  to_open_.push_back(std::move(lease));
}

std::shared_ptr<ShmSocket> ShmBorrower::SocketOf(kv::LeaseId lease) const {
  absl::MutexLock lock(&mutex_);
  auto it = leases_.find(lease);
  return it == leases_.end() || it->second->state != ShmLease::State::kOpen ? nullptr : it->second->socket;
}

void ShmBorrower::SendRenewal(kv::LeaseId lease, int64_t heat) {
  if (const auto socket = SocketOf(lease)) socket->Send(EncodeShmMessage(ShmRenew{heat}));
}

// Nothing follows it: stores that were not sent by then are not.
void ShmBorrower::SendRelease(kv::LeaseId id) {
  std::shared_ptr<ShmSocket> socket;
  {
    absl::MutexLock lock(&mutex_);
    auto it = leases_.find(id);
    if (it == leases_.end() || it->second->state != ShmLease::State::kOpen) return;
    const LeasePtr lease = it->second;
    lease->released = true;
    std::erase_if(to_send_, [&](const SendJob& job) { return job.lease == lease; });
    mutex_.Await(absl::Condition(
        +[](ShmLease* l) { return !l->sending; }, lease.get()));
    socket = lease->socket;
  }
  socket->Send(EncodeShmMessage(ShmRelease{}));
}

void ShmBorrower::Abandon(kv::LeaseId id) {
  LeasePtr lease;
  {
    absl::MutexLock lock(&mutex_);
    auto it = leases_.find(id);
    if (it == leases_.end()) return;
    lease = it->second;
  }
  EndStores(*lease);
}

void ShmBorrower::Close(kv::LeaseId id) {
  std::shared_ptr<ShmSocket> socket;
  {
    absl::MutexLock lock(&mutex_);
    auto it = leases_.find(id);
    if (it == leases_.end()) return;
    const LeasePtr lease = std::move(it->second);
    leases_.erase(it);
    lease->closed = true;
    lease->waiting.clear();
    mutex_.Await(absl::Condition(
        +[](ShmLease* l) { return !l->copying && l->telling == 0; }, lease.get()));
    TakeUnanswered(*lease);
    socket = lease->socket;
    to_unmap_.push_back(lease);
  }
  if (socket != nullptr) socket->Shutdown();
}

void ShmBorrower::Store(Ticket ticket, const StorePiece& piece, const backend::Fence& after) {
  const auto& [id, offset_bytes, from, bytes] = piece;
  absl::MutexLock lock(&mutex_);
  auto it = leases_.find(id);
  if (it == leases_.end() || it->second->state == ShmLease::State::kEnded) {
    to_refuse_.push_back({ticket, absl::UnavailableError(absl::StrCat("lease ", id.value(), " has no channel"))});
    return;
  }
  ShmLease& lease = *it->second;
  CHECK(bytes > 0 && bytes <= lease.spec.store_bytes && offset_bytes >= 0 && offset_bytes <= lease.spec.bytes - bytes)
      << "store of " << bytes << " bytes at " << offset_bytes << " of lease " << id;
  if (lease.waiting.empty()) to_store_.push_back(it->second);
  lease.waiting.push_back({.ticket = ticket, .offset = offset_bytes, .from = from, .after = after, .bytes = bytes});
}

std::shared_ptr<const ShmLease> ShmBorrower::Find(kv::LeaseId lease) const {
  absl::MutexLock lock(&mutex_);
  auto it = leases_.find(lease);
  return it == leases_.end() || !it->second->mapped.view.base ? nullptr : it->second;
}

void ShmBorrower::AddStats(TransportStats& stats) const {
  absl::MutexLock lock(&mutex_);
  stats.stored_bytes += stats_.stored_bytes;
  stats.store_time += stats_.store_time;
}

void ShmBorrower::Run() {
  for (;;) {
    Job job = NextJob();
    if (std::holds_alternative<std::monostate>(job)) return;
    std::visit([this](const auto& what) { Do(what); }, job);
  }
}

bool ShmBorrower::CanStore(const ShmLease& lease) const {
  return lease.takes_stores() && !lease.waiting.empty() && lease.unanswered.size() < kMaxUnanswered &&
         lease.staging->ring.HasRoom(lease.waiting.front().bytes);
}

bool ShmBorrower::HasWork() const {
  return stopping_ || !to_open_.empty() || !to_map_.empty() || !to_refuse_.empty() || !to_unmap_.empty() ||
         std::any_of(to_store_.begin(), to_store_.end(), [this](const LeasePtr& lease) {
           mutex_.AssertHeld();
           return CanStore(*lease);
         });
}

// Nothing where the thread must end. What is due goes first, so that a full link is kept full.
ShmBorrower::Job ShmBorrower::NextJob() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    if (stopping_) return {};
    const absl::Duration wait = to_send_.empty() ? absl::InfiniteDuration() : to_send_.front().due - clock_.Now();
    if (wait <= absl::ZeroDuration()) {
      to_send_.front().lease->sending = true;
      return Take(to_send_);
    }
    if (!to_refuse_.empty()) return Take(to_refuse_);
    if (!to_open_.empty()) return OpenJob{Take(to_open_)};
    if (!to_map_.empty()) return Take(to_map_);
    if (std::optional<CopyJob> job = TakeCopyJob()) return *std::move(job);
    if (!to_unmap_.empty()) return UnmapJob{Take(to_unmap_)};
    mutex_.AwaitWithTimeout(absl::Condition(this, &ShmBorrower::HasWork), wait);
  }
}

// The first lease in turn whose next store has room; it goes to the end of the line.
std::optional<ShmBorrower::CopyJob> ShmBorrower::TakeCopyJob() {
  std::erase_if(to_store_, [](const LeasePtr& lease) { return lease->waiting.empty(); });
  for (size_t i = 0; i < to_store_.size(); ++i) {
    const LeasePtr lease = to_store_[i];
    if (!CanStore(*lease)) continue;
    CopyJob job = {.lease = lease, .store = lease->waiting.front()};
    lease->waiting.pop_front();
    to_store_.erase(to_store_.begin() + i);
    if (!lease->waiting.empty()) to_store_.push_back(lease);
    job.store.staging_offset = *lease->staging->ring.Push(job.store.bytes);
    job.store.began = clock_.Now();
    job.store.due = link_.Carry(job.store.bytes, job.store.began);
    return job;
  }
  return std::nullopt;
}

void ShmBorrower::Do(const OpenJob& job) {
  const absl::Status status = Connect(job.lease);
  if (!status.ok()) OnEnd(*job.lease, status);
}

// One for all leases of a donor: it need not know how many they are.
absl::StatusOr<std::shared_ptr<ShmStaging>> ShmBorrower::StagingFor(const OpenSpec& spec) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  if (spec.store_bytes > kMaxStagingBytes / kStoresInStaging - page) {
    return absl::InvalidArgumentError(absl::StrCat("stores of ", spec.store_bytes, " bytes want more staging memory ",
                                                   "than the ", kMaxStagingBytes, " bytes that are allowed"));
  }
  std::weak_ptr<ShmStaging>& known = stagings_[spec.channel];
  std::shared_ptr<ShmStaging> staging = known.lock();
  if (staging != nullptr && staging->ring_bytes >= spec.store_bytes) return staging;
  absl::erase_if(stagings_, [](const auto& entry) { return entry.second.expired(); });
  const int64_t ring_bytes = std::max(CeilDiv(kStoresInStaging * spec.store_bytes, page) * page, kLeastStagingBytes);
  ASSIGN_OR_RETURN(std::unique_ptr<OwnStaging> memory, memory_.CreateStaging(ring_bytes));
  staging = std::make_shared<ShmStaging>(std::move(memory), ring_bytes);
  stagings_[spec.channel] = staging;
  return staging;
}

absl::Status ShmBorrower::Connect(const LeasePtr& lease) {
  const OpenSpec& spec = lease->spec;
  if (static_cast<int64_t>(spec.capability.size()) > kMaxWireText) {
    return absl::InvalidArgumentError(absl::StrCat("lease ", spec.lease.value(), " has a capability of ",
                                                   spec.capability.size(), " bytes; at most ", kMaxWireText,
                                                   " are allowed"));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<ShmStaging> staging, StagingFor(spec));
  ASSIGN_OR_RETURN(const std::shared_ptr<ShmSocket> socket, ShmSocket::Connect(spec.channel));
  ShmHello hello = {.lease = spec.lease.value(), .staging_bytes = staging->memory->bytes()};
  SetWireText(hello.capability, spec.capability);
  SetWireText(hello.instance, options_.instance_id);
  socket->Send(EncodeShmMessage(hello), staging->memory->fds());
  {
    absl::MutexLock lock(&mutex_);
    if (lease->closed) return absl::OkStatus();
    lease->staging = staging;
    lease->socket = socket;
  }
  return loop_->Add(std::make_shared<ShmBorrowerChannel>(*this, lease, socket));
}

// What was mapped for a lease that was closed or has ended meanwhile is unmapped here, when the lock is free.
void ShmBorrower::Do(const MapJob& job) {
  ShmLease& lease = *job.lease;
  {
    absl::MutexLock lock(&mutex_);
    if (!lease.awaits_grant()) return;
  }
  absl::StatusOr<ShmMapped> mapped = MapGrant(lease.spec, job.grant, job.fds, memory_);
  const absl::Status status = mapped.status();
  LeaseView view;
  {
    absl::MutexLock lock(&mutex_);
    if (!lease.awaits_grant()) return;
    if (status.ok()) {
      mapped->view.reads = lease.staging->memory->reads();
      view = mapped->view;
      lease.mapped = *std::move(mapped);
      lease.state = ShmLease::State::kOpen;
    } else {
      lease.unmappable = status;
    }
  }
  if (!status.ok()) return lease.socket->Shutdown();  // OnEnd tells why, once
  Notify(lease, [&](TransportEvents& events) { events.OnOpened(lease.spec.lease, view); });
}

// False: the lease has ended meanwhile, and the store with it.
bool ShmBorrower::BeginCopy(const CopyJob& job) {
  ShmLease& lease = *job.lease;
  absl::MutexLock lock(&mutex_);
  if (!lease.takes_stores()) {
    lease.staging->ring.Free(job.store.staging_offset);
    return false;
  }
  lease.copying = true;
  return true;
}

void ShmBorrower::Do(const CopyJob& job) {
  ShmLease& lease = *job.lease;
  job.store.after.Wait();
  if (!BeginCopy(job)) {
    const absl::Status fate = absl::UnavailableError("the lease ended before the store began");
    return Notify(lease, [&](TransportEvents& events) { events.OnStored(job.store.ticket, fate); });
  }
  if (const absl::Status copied = CopyOut(job); !copied.ok()) return FailCopy(job, copied);
  absl::MutexLock lock(&mutex_);
  lease.copying = false;
  lease.unanswered.push_back(job.store);
  if (lease.released) return;
  to_send_.push_back({.due = job.store.due,
                      .lease = job.lease,
                      .message = {.ticket = job.store.ticket.value(),
                                  .offset = job.store.offset,
                                  .bytes = job.store.bytes,
                                  .staging_offset = job.store.staging_offset}});
}

// In pieces, so that Close, and the end of the channel, wait for one of them only; and not for what comes before it.
absl::Status ShmBorrower::CopyOut(const CopyJob& job) {
  ShmLease& lease = *job.lease;
  const auto wanted = [&] {
    absl::MutexLock lock(&mutex_);
    return lease.takes_stores();
  };
  const auto& [to, from] = std::pair(job.store.staging_offset, job.store.from);
  const int64_t most_bytes = memory_.most_bytes_a_copy();
  for (int64_t done = 0; done < job.store.bytes && wanted(); done += most_bytes) {
    RETURN_IF_ERROR(memory_.CopyOut(*lease.staging->memory, to + done, from + done,
                                    std::min(most_bytes, job.store.bytes - done), job.store.after));
  }
  return absl::OkStatus();
}

// The device would not copy it; the lease stands, and its donor never hears of the store.
void ShmBorrower::FailCopy(const CopyJob& job, const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    job.lease->copying = false;
    job.lease->staging->ring.Free(job.store.staging_offset);
  }
  const absl::Status fate = absl::UnavailableError(absl::StrCat("the store could not be copied: ", why.message()));
  Notify(*job.lease, [&](TransportEvents& events) { events.OnStored(job.store.ticket, fate); });
}

void ShmBorrower::Do(const SendJob& job) {
  job.lease->socket->Send(EncodeShmMessage(job.message));
  absl::MutexLock lock(&mutex_);
  job.lease->sending = false;
}

void ShmBorrower::OnGrant(LeasePtr lease, ShmGrantMessage message, std::vector<memory::UniqueFd> fds) {
  absl::MutexLock lock(&mutex_);
  to_map_.push_back({.lease = std::move(lease), .grant = std::move(message), .fds = std::move(fds)});
}

absl::Status ShmBorrower::OnStored(ShmLease& lease, Ticket ticket) {
  {
    absl::MutexLock lock(&mutex_);
    if (lease.closed || lease.state == ShmLease::State::kEnded) return absl::OkStatus();
    if (lease.unanswered.empty() || lease.unanswered.front().ticket != ticket) {
      return absl::InvalidArgumentError(
          absl::StrCat("a donor says that it stored ", ticket.value(), ", which is not the oldest unanswered store"));
    }
    const ShmLease::StoreJob store = lease.unanswered.front();
    lease.unanswered.pop_front();
    lease.staging->ring.Free(store.staging_offset);
    const absl::Time now = clock_.Now();
    stats_.stored_bytes += store.bytes;
    stats_.store_time += now - std::max(store.began, last_stored_);
    last_stored_ = now;
  }
  Notify(lease, [&](TransportEvents& events) { events.OnStored(ticket, absl::OkStatus()); });
  return absl::OkStatus();
}

// Nothing is stored any more, and what was not answered is answered here.
void ShmBorrower::EndStores(ShmLease& lease) {
  std::deque<ShmLease::StoreJob> unfinished;
  absl::Status fate = absl::UnavailableError("the lease's channel closed before the donor answered");
  {
    absl::MutexLock lock(&mutex_);
    const bool opened = lease.state == ShmLease::State::kOpen;
    lease.state = ShmLease::State::kEnded;
    mutex_.Await(absl::Condition(
        +[](ShmLease* l) { return !l->copying; }, &lease));
    unfinished = TakeUnanswered(lease);
    std::move(lease.waiting.begin(), lease.waiting.end(), std::back_inserter(unfinished));
    lease.waiting.clear();
    if (opened && !lease.mapped.view.Holds()) fate = absl::FailedPreconditionError("the donor fenced the lease");
  }
  for (const ShmLease::StoreJob& store : unfinished) {
    Notify(lease, [&](TransportEvents& events) { events.OnStored(store.ticket, fate); });
  }
}

void ShmBorrower::OnEnd(ShmLease& lease, absl::Status why) {
  bool opening = false, silent = false;
  {
    absl::MutexLock lock(&mutex_);
    opening = lease.state == ShmLease::State::kOpening;
    silent = lease.released;
    if (!lease.unmappable.ok()) why = lease.unmappable;
  }
  EndStores(lease);
  if (opening) {
    Notify(lease, [&](TransportEvents& events) { events.OnOpened(lease.spec.lease, why); });
  } else if (!silent) {
    Notify(lease, [&](TransportEvents& events) { events.OnDonorGone(lease.spec.lease); });
  }
}

}  // namespace swiftcache::engine::transport
