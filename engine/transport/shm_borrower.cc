// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_borrower.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/transport/shm_foreign_memory.h"
#include "engine/transport/shm_message.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

constexpr int64_t kStoresInStaging = 4;

// Room for a few stores, but not more than the whole lease is, unless one store is.
int64_t StagingBytes(const OpenSpec& spec) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t few = std::max(spec.store_bytes, std::min(kStoresInStaging * spec.store_bytes, spec.bytes));
  return CeilDiv(std::max<int64_t>(few, 1), page) * page;
}

absl::Status Refused(kv::LeaseId lease, ShmRefusal reason) {
  return absl::PermissionDeniedError(absl::StrCat("the donor of lease ", lease.value(), " refuses it: ",
                                                  reason == ShmRefusal::kAlreadyOpen
                                                      ? "its channel is open already"
                                                      : "it is not granted, or not to this engine's instance"));
}

template <typename T>
T Take(std::deque<T>& queue) {
  T first = std::move(queue.front());
  queue.pop_front();
  return first;
}

}  // namespace

/// A lease's channel, seen from the borrower.
class ShmBorrower::Channel final : public ShmPeer {
 public:
  Channel(ShmBorrower& borrower, LeasePtr lease, std::shared_ptr<ShmSocket> socket)
      : borrower_(borrower), lease_(std::move(lease)), socket_(std::move(socket)) {}
  ShmSocket& socket() override { return *socket_; }

  absl::Status OnMessage(ShmMessage message, std::vector<kv::UniqueFd> fds) override {
    const absl::Status status = opened_ ? Hear(message, fds) : HearFirst(message, fds);
    if (!status.ok()) why_ = status;
    return status;
  }
  void OnClosed() override { borrower_.OnEnd(*lease_, why_); }

 private:
  absl::Status HearFirst(const ShmMessage& message, const std::vector<kv::UniqueFd>& fds) {
    if (const auto* refuse = std::get_if<ShmRefuse>(&message)) return Refused(lease_->spec.lease, refuse->reason);
    const auto* grant = std::get_if<ShmGrantMessage>(&message);
    if (grant == nullptr) return absl::InvalidArgumentError("a donor's first message is neither GRANT nor REFUSE");
    opened_ = true;
    return borrower_.OnGrant(*lease_, *grant, fds);
  }

  absl::Status Hear(const ShmMessage& message, const std::vector<kv::UniqueFd>& fds) {
    const kv::LeaseId lease = lease_->spec.lease;
    if (!fds.empty()) return absl::InvalidArgumentError("a donor sent descriptors after his GRANT");
    if (const auto* stored = std::get_if<ShmStored>(&message)) {
      return borrower_.OnStored(*lease_, Ticket(stored->ticket));
    }
    if (const auto* revoke = std::get_if<ShmRevoke>(&message)) {
      borrower_.Tell(*lease_, [&] { borrower_.events_.OnRevoked(lease, absl::Nanoseconds(revoke->time_left_ns)); });
      return absl::OkStatus();
    }
    if (!std::holds_alternative<ShmRenewed>(message)) {
      return absl::InvalidArgumentError("a donor sent a message that only borrowers send");
    }
    borrower_.Tell(*lease_, [&] { borrower_.events_.OnRenewed(lease); });
    return absl::OkStatus();
  }

  ShmBorrower& borrower_;
  const LeasePtr lease_;
  const std::shared_ptr<ShmSocket> socket_;
  bool opened_ = false;
  absl::Status why_ = absl::UnavailableError("the donor closed the lease's channel");
};

ShmBorrower::ShmBorrower(const Options& options, const Clock& clock, TransportEvents& events)
    : options_(options), clock_(clock), events_(events), link_(options.link) {}

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
}

void ShmBorrower::Open(const OpenSpec& spec) {
  CHECK_GT(spec.bytes, 0);
  CHECK_GT(spec.store_bytes, 0);
  absl::MutexLock lock(&mutex_);
  auto lease = std::make_shared<ShmLease>(spec);
  CHECK(leases_.emplace(spec.lease, lease).second) << "lease " << spec.lease << " is open already";
  to_open_.push_back(std::move(lease));
}

std::shared_ptr<ShmSocket> ShmBorrower::SocketOf(kv::LeaseId lease) const {
  absl::MutexLock lock(&mutex_);
  auto it = leases_.find(lease);
  return it == leases_.end() || it->second->state != ShmLease::State::kOpen ? nullptr : it->second->socket;
}

void ShmBorrower::SendRenewal(kv::LeaseId lease) {
  if (const auto socket = SocketOf(lease)) socket->Send(EncodeShmMessage(ShmRenew{}));
}

void ShmBorrower::SendRelease(kv::LeaseId lease) {
  const auto socket = SocketOf(lease);
  if (socket == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    auto it = leases_.find(lease);
    if (it != leases_.end()) it->second->released = true;
  }
  socket->Send(EncodeShmMessage(ShmRelease{}));
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
    socket = lease->socket;
  }
  if (socket != nullptr) socket->Shutdown();
}

void ShmBorrower::Store(Ticket ticket, kv::LeaseId id, int64_t offset_bytes, const std::byte* from, int64_t bytes) {
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
  lease.waiting.push_back({.ticket = ticket, .offset = offset_bytes, .from = from, .bytes = bytes});
}

std::shared_ptr<const ShmLease> ShmBorrower::Find(kv::LeaseId lease) const {
  absl::MutexLock lock(&mutex_);
  auto it = leases_.find(lease);
  return it == leases_.end() || it->second->view.base == nullptr ? nullptr : it->second;
}

void ShmBorrower::AddStats(TransportStats& stats) const {
  absl::MutexLock lock(&mutex_);
  stats.stored_bytes += stats_.stored_bytes;
  stats.store_time += stats_.store_time;
}

template <typename Event>
void ShmBorrower::Tell(ShmLease& lease, Event event) {
  {
    absl::MutexLock lock(&mutex_);
    if (lease.closed) return;
    ++lease.telling;
  }
  event();
  absl::MutexLock lock(&mutex_);
  --lease.telling;
}

void ShmBorrower::Run() {
  for (;;) {
    Job job = NextJob();
    if (std::holds_alternative<std::monostate>(job)) return;
    std::visit([this](const auto& what) { Do(what); }, job);
  }
}

bool ShmBorrower::CanStore(const ShmLease& lease) const {
  return lease.state == ShmLease::State::kOpen && !lease.waiting.empty() && lease.unanswered.size() < kMaxUnanswered &&
         lease.ring.HasRoom(lease.waiting.front().bytes);
}

bool ShmBorrower::HasWork() const {
  return stopping_ || !to_open_.empty() || !to_refuse_.empty() ||
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
    if (wait <= absl::ZeroDuration()) return Take(to_send_);
    if (!to_refuse_.empty()) return Take(to_refuse_);
    if (!to_open_.empty()) return OpenJob{Take(to_open_)};
    if (std::optional<CopyJob> job = TakeCopyJob()) return *std::move(job);
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
    job.staging_offset = *lease->ring.Push(job.store.bytes);
    job.store.began = clock_.Now();
    job.store.due = link_.Carry(job.store.bytes, job.store.began);
    lease->copying = true;
    return job;
  }
  return std::nullopt;
}

void ShmBorrower::Do(const OpenJob& job) {
  const absl::Status status = Connect(job.lease);
  if (!status.ok()) OnEnd(*job.lease, status);
}

absl::Status ShmBorrower::Connect(const LeasePtr& lease) {
  const OpenSpec& spec = lease->spec;
  const int64_t bytes = StagingBytes(spec);
  if (bytes > kMaxStagingBytes || static_cast<int64_t>(spec.capability.size()) > kMaxShmText) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease ", spec.lease.value(), " wants ", bytes, " bytes of staging memory with a capability of ",
                     spec.capability.size(), "; at most ", kMaxStagingBytes, " and ", kMaxShmText, " are allowed"));
  }
  ASSIGN_OR_RETURN(kv::Mapping staging, kv::Mapping::Reserve(bytes));
  ASSIGN_OR_RETURN(const kv::UniqueFd fd, kv::CreateSealedMemory("swiftcache-staging", staging.base(), bytes));
  ASSIGN_OR_RETURN(const std::shared_ptr<ShmSocket> socket, ShmSocket::Connect(spec.channel));
  ShmHello hello = {.lease = spec.lease.value(), .staging_bytes = bytes};
  SetShmText(hello.capability, spec.capability);
  SetShmText(hello.instance, options_.instance_id);
  const int fds[] = {fd.get()};
  socket->Send(EncodeShmMessage(hello), fds);
  {
    absl::MutexLock lock(&mutex_);
    if (lease->closed) return absl::OkStatus();
    lease->staging = std::move(staging);
    lease->ring = ShmStagingRing(bytes);
    lease->socket = socket;
  }
  return loop_->Add(std::make_shared<Channel>(*this, lease, socket));
}

// In pieces, so that Close, and the end of the channel, wait for one of them only.
void ShmBorrower::Do(const CopyJob& job) {
  ShmLease& lease = *job.lease;
  const auto wanted = [&] {
    absl::MutexLock lock(&mutex_);
    return !lease.closed && lease.state == ShmLease::State::kOpen;
  };
  std::byte* const to = lease.staging.base() + job.staging_offset;
  for (int64_t done = 0; done < job.store.bytes && wanted(); done += Transport::kMaxCopyBytes) {
    std::memcpy(to + done, job.store.from + done, std::min(Transport::kMaxCopyBytes, job.store.bytes - done));
  }
  absl::MutexLock lock(&mutex_);
  lease.copying = false;
  lease.unanswered.push_back(job.store);
  to_send_.push_back({.due = job.store.due,
                      .lease = job.lease,
                      .message = {.ticket = job.store.ticket.value(),
                                  .offset = job.store.offset,
                                  .bytes = job.store.bytes,
                                  .staging_offset = job.staging_offset}});
}

void ShmBorrower::Do(const SendJob& job) { job.lease->socket->Send(EncodeShmMessage(job.message)); }

absl::Status ShmBorrower::OnGrant(ShmLease& lease, const ShmGrantMessage& message,
                                  const std::vector<kv::UniqueFd>& fds) {
  const int64_t page = sysconf(_SC_PAGESIZE), word_offset = message.grant.word * int64_t{sizeof(uint64_t)};
  RETURN_IF_ERROR(CheckShmGrant(message, lease.spec.bytes, page));
  if (fds.size() != message.pieces.size() + 1 || message.grant.epoch != lease.spec.epoch.value()) {
    return absl::InvalidArgumentError(absl::StrCat("GRANT of epoch ", message.grant.epoch, " brings ", fds.size(),
                                                   " descriptors for ", message.pieces.size(), " pieces; epoch ",
                                                   lease.spec.epoch.value(), " and one more are wanted"));
  }
  ASSIGN_OR_RETURN(kv::Mapping generation, kv::Mapping::Reserve(page));
  RETURN_IF_ERROR(MapForeignMemory(fds[0].get(), word_offset / page * page, page, generation.base()));
  ASSIGN_OR_RETURN(kv::Mapping memory, kv::Mapping::Reserve(lease.spec.bytes));
  std::byte* at = memory.base();
  for (size_t i = 0; i < message.pieces.size(); ++i) {
    RETURN_IF_ERROR(MapForeignMemory(fds[i + 1].get(), message.pieces[i].offset, message.pieces[i].bytes, at));
    at += message.pieces[i].bytes;
  }
  const LeaseView view = {
      .base = memory.base(),
      .bytes = lease.spec.bytes,
      .generation = reinterpret_cast<const std::atomic<uint64_t>*>(generation.base() + word_offset % page),
      .epoch = lease.spec.epoch};
  {
    absl::MutexLock lock(&mutex_);
    lease.memory = std::move(memory);
    lease.generation = std::move(generation);
    lease.view = view;
    lease.state = ShmLease::State::kOpen;
  }
  Tell(lease, [&] { events_.OnOpened(lease.spec.lease, view); });
  return absl::OkStatus();
}

absl::Status ShmBorrower::OnStored(ShmLease& lease, Ticket ticket) {
  {
    absl::MutexLock lock(&mutex_);
    if (lease.unanswered.empty() || lease.unanswered.front().ticket != ticket) {
      return absl::InvalidArgumentError(
          absl::StrCat("a donor says that he stored ", ticket.value(), ", which is not the oldest unanswered store"));
    }
    const ShmLease::StoreJob store = lease.unanswered.front();
    lease.unanswered.pop_front();
    lease.ring.Pop();
    const absl::Time now = clock_.Now();
    stats_.stored_bytes += store.bytes;
    stats_.store_time += now - std::max(store.began, last_stored_);
    last_stored_ = now;
  }
  Tell(lease, [&] { events_.OnStored(ticket, absl::OkStatus()); });
  return absl::OkStatus();
}

void ShmBorrower::OnEnd(ShmLease& lease, const absl::Status& why) {
  std::deque<ShmLease::StoreJob> unfinished;
  absl::Status fate = absl::UnavailableError("the lease's channel closed before the donor answered");
  bool opening = false, silent = false;
  {
    absl::MutexLock lock(&mutex_);
    opening = lease.state == ShmLease::State::kOpening;
    lease.state = ShmLease::State::kEnded;
    silent = lease.released;
    mutex_.Await(absl::Condition(
        +[](ShmLease* l) { return !l->copying; }, &lease));
    unfinished = std::exchange(lease.unanswered, {});
    std::move(lease.waiting.begin(), lease.waiting.end(), std::back_inserter(unfinished));
    lease.waiting.clear();
    if (!opening && !lease.view.Holds()) fate = absl::FailedPreconditionError("the donor fenced the lease");
  }
  for (const ShmLease::StoreJob& store : unfinished) Tell(lease, [&] { events_.OnStored(store.ticket, fate); });
  if (opening) {
    Tell(lease, [&] { events_.OnOpened(lease.spec.lease, why); });
  } else if (!silent) {
    Tell(lease, [&] { events_.OnDonorGone(lease.spec.lease); });
  }
}

}  // namespace swiftcache::engine::transport
