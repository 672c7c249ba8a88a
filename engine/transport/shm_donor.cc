// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_donor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/shm_donor_channel.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {

absl::StatusOr<std::unique_ptr<ShmDonor>> ShmDonor::Create(PeerMemory& memory, const Clock& clock,
                                                           TransportEvents& events) {
  ASSIGN_OR_RETURN(ShmGenerations generations, ShmGenerations::Create());
  return std::unique_ptr<ShmDonor>(new ShmDonor(memory, clock, events, std::move(generations)));
}

ShmDonor::ShmDonor(PeerMemory& memory, const Clock& clock, TransportEvents& events, ShmGenerations generations)
    : memory_(memory), clock_(clock), events_(events), generations_(std::move(generations)) {
  thread_ = std::thread([this] { Run(); });
}

void ShmDonor::Stop() {
  if (!thread_.joinable()) return;
  std::vector<kv::LeaseId> leases;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [lease, grant] : grants_) leases.push_back(lease);
  }
  for (const kv::LeaseId lease : leases) Fence(lease);
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  {
    absl::MutexLock lock(&readers_mutex_);
    readers_.clear();
  }
  std::deque<ShowJob> unbegun;  // their channels' end takes the lock
  absl::MutexLock lock(&mutex_);
  unbegun.swap(to_show_);
  to_unmap_.clear();
}

absl::Status ShmDonor::CheckSpec(const GrantSpec& spec) const {
  const int64_t page = sysconf(_SC_PAGESIZE), arena_bytes = memory_.arena_bytes();
  RETURN_IF_ERROR(memory_.CheckLendable());
  if (spec.offset_bytes < 0 || spec.bytes <= 0 || spec.offset_bytes % page != 0 || spec.bytes % page != 0 ||
      spec.bytes > arena_bytes || spec.offset_bytes > arena_bytes - spec.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("lease ", spec.lease.value(), " is of ", spec.bytes, " bytes at ",
                                                   spec.offset_bytes, "; whole pages of ", page, " inside the arena's ",
                                                   arena_bytes, " bytes are wanted"));
  }
  return CheckGrantTexts(spec);
}

absl::StatusOr<kv::Epoch> ShmDonor::Grant(const GrantSpec& spec) {
  RETURN_IF_ERROR(CheckSpec(spec));
  absl::MutexLock lock(&mutex_);
  if (Find(spec.lease) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("lease ", spec.lease.value(), " is granted already"));
  }
  const std::optional<int32_t> word = generations_.Take();
  if (!word) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", ShmGenerations::kWords, " generation words are in use:", " lease fewer, larger extents"));
  }
  auto grant = std::make_shared<GrantState>();
  grant->spec = spec;
  grant->word = *word;
  grant->epoch = generations_.Advance(*word);
  grants_[spec.lease] = grant;
  return grant->epoch;
}

ShmDonor::GrantPtr ShmDonor::Find(kv::LeaseId lease) {
  auto it = grants_.find(lease);
  return it == grants_.end() ? nullptr : it->second;
}

std::shared_ptr<ShmSocket> ShmDonor::SocketOf(kv::LeaseId lease) {
  absl::MutexLock lock(&mutex_);
  const GrantPtr grant = Find(lease);
  return grant == nullptr || !grant->shown ? nullptr : grant->channel->shared_socket();
}

void ShmDonor::SendRevoke(kv::LeaseId lease, absl::Duration time_left) {
  time_left = std::clamp(time_left, absl::ZeroDuration(), absl::Hours(24));
  {
    absl::MutexLock lock(&mutex_);
    if (const GrantPtr grant = Find(lease)) grant->leave_by = clock_.Now() + time_left;
  }
  if (const auto socket = SocketOf(lease)) {
    socket->Send(EncodeShmMessage(ShmRevoke{absl::ToInt64Nanoseconds(time_left)}));
  }
}

void ShmDonor::SendRenewed(kv::LeaseId lease) {
  if (const auto socket = SocketOf(lease)) socket->Send(EncodeShmMessage(ShmRenewed{}));
}

// The word changes before the wait: a piece that is being copied lands in memory that no borrower believes any more. Who
// fences what another does already waits too: the memory is the owner's after either.
void ShmDonor::Fence(kv::LeaseId lease) {
  std::shared_ptr<ShmDonorChannel> channel;  // its end takes the lock
  {
    absl::MutexLock lock(&mutex_);
    const GrantPtr grant = Find(lease);
    if (grant == nullptr) return;
    const bool first = !std::exchange(grant->fenced, true);
    if (first) (void)generations_.Advance(grant->word);
    grant->stores.clear();
    mutex_.Await(absl::Condition(
        +[](GrantState* g) { return !g->copying; }, grant.get()));
    if (!first) return;
    channel = std::exchange(grant->channel, nullptr);
    grant->shown = false;
    generations_.Return(grant->word);
    grants_.erase(lease);
  }
  if (channel != nullptr) channel->shared_socket()->Shutdown();
}

// Borrowers' words are foreign bytes; whether their sum has changed is all that is asked.
void ShmDonor::AddStats(TransportStats& stats) const {
  stats.received_bytes += received_bytes_.load(std::memory_order_relaxed);
  absl::MutexLock lock(&readers_mutex_);
  for (const auto& [borrower, channels] : readers_) stats.borrowers_read += channels.front()->staging().reads();
}

std::shared_ptr<ShmPeer> ShmDonor::Meet(std::shared_ptr<ShmSocket> socket) {
  if (strangers_.size() >= kMaxStrangers) {
    strangers_.front()->socket().Shutdown();  // the loop sees its end
    strangers_.erase(strangers_.begin());
  }
  auto channel = std::make_shared<ShmDonorChannel>(*this, std::move(socket));
  strangers_.push_back(channel.get());
  return channel;
}

absl::StatusOr<ShmDonor::GrantPtr> ShmDonor::Admit(const ShmHello& hello, const ShmDonorChannel& channel) {
  absl::MutexLock lock(&mutex_);
  const GrantPtr grant = Find(kv::LeaseId(hello.lease));
  if (grant == nullptr || grant->fenced || !IsSameSecret(grant->spec.capability, TextOf(hello.capability)) ||
      grant->spec.borrower_instance != TextOf(hello.instance)) {
    return absl::PermissionDeniedError(absl::StrCat("lease ", hello.lease, " is not granted to who asks for it"));
  }
  if (grant->taker != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("lease ", hello.lease, " has an open channel already"));
  }
  grant->taker = &channel;
  return grant;
}

void ShmDonor::ShowLater(ShowJob job) {
  absl::MutexLock lock(&mutex_);
  to_show_.push_back(std::move(job));
}

absl::Status ShmDonor::Enqueue(const GrantPtr& grant, const ShmDonorChannel& channel, const ShmStore& store) {
  absl::MutexLock lock(&mutex_);
  if (grant->fenced) return absl::OkStatus();  // too late; the end of the channel tells it
  if (grant->channel.get() != &channel) return absl::InvalidArgumentError("a borrower stores before its GRANT");
  RETURN_IF_ERROR(CheckShmStore(store, grant->spec.bytes, channel.staging().bytes()));
  if (grant->stores.size() >= kMaxUnanswered) {
    return absl::InvalidArgumentError(absl::StrCat("a borrower has over ", kMaxUnanswered, " stores unanswered"));
  }
  if (grant->stores.empty()) with_stores_.push_back(grant);
  grant->stores.push_back(store);
  return absl::OkStatus();
}

void ShmDonor::Detach(const ShmDonorChannel& channel, const GrantPtr& grant) {
  ShowJob unbegun;  // its descriptors are closed without the lock
  bool gone = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto job = std::find_if(to_show_.begin(), to_show_.end(),
                                  [&](const ShowJob& known) { return known.channel.get() == &channel; });
    if (job != to_show_.end()) {
      unbegun = std::move(*job);
      to_show_.erase(job);
    }
    gone = grant != nullptr && !grant->fenced;
    if (gone) {
      grant->taker = nullptr;
      grant->stores.clear();
      grant->channel = nullptr;
      grant->shown = false;
    }
  }
  ForgetReader(channel);
  if (gone) events_.OnBorrowerGone(grant->spec.lease);
}

void ShmDonor::ForgetReader(const ShmDonorChannel& channel) {
  absl::MutexLock lock(&readers_mutex_);
  const auto reader = readers_.find(channel.borrower());
  if (reader == readers_.end()) return;
  std::erase_if(reader->second, [&](const auto& known) { return known.get() == &channel; });
  if (reader->second.empty()) readers_.erase(reader);
}

void ShmDonor::Run() {
  for (;;) {
    const Job job = NextJob();
    if (std::holds_alternative<std::monostate>(job)) return;
    std::visit([this](const auto& what) { Do(what); }, job);
  }
}

// Nothing where the thread must end. One job of each kind in turn: others store, open and leave whatever one borrower does
// without end.
ShmDonor::Job ShmDonor::NextJob() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    mutex_.Await(absl::Condition(this, &ShmDonor::HasWork));
    if (stopping_) return {};
    const uint32_t turn = turn_++ % 3;
    if (turn == 0) {
      if (std::optional<StoreJob> job = TakeStore()) return *std::move(job);
    } else if (turn == 1 && !to_show_.empty()) {
      ShowJob job = std::move(to_show_.front());
      to_show_.pop_front();
      return job;
    } else if (turn == 2 && !to_unmap_.empty()) {
      UnmapJob job = {std::move(to_unmap_.front())};
      to_unmap_.pop_front();
      return job;
    }
  }
}

// One store of each lease in turn.
std::optional<ShmDonor::StoreJob> ShmDonor::TakeStore() {
  while (!with_stores_.empty()) {
    const GrantPtr grant = with_stores_.front();
    with_stores_.pop_front();
    if (grant->stores.empty()) continue;  // fenced, or its borrower has gone
    StoreJob job = {.grant = grant, .channel = grant->channel, .store = grant->stores.front()};
    grant->stores.pop_front();
    if (!grant->stores.empty()) with_stores_.push_back(grant);
    return job;
  }
  return std::nullopt;
}

bool ShmDonor::Begin(const StoreJob& job) {
  absl::MutexLock lock(&mutex_);
  if (job.grant->fenced || job.grant->channel != job.channel) return false;
  job.grant->copying = true;
  return true;
}

void ShmDonor::Do(const StoreJob& job) {
  const auto& [grant, channel, store] = job;
  const int64_t to = grant->spec.offset_bytes + store.offset, most_bytes = memory_.most_bytes_a_copy();
  for (int64_t done = 0; done < store.bytes; done += most_bytes) {
    const int64_t bytes = std::min(most_bytes, store.bytes - done);
    if (!Begin(job)) return;
    const absl::Status copied = memory_.CopyIn(to + done, channel->staging(), store.staging_offset + done, bytes);
    absl::MutexLock lock(&mutex_);
    grant->copying = false;
    if (!copied.ok()) {  // its borrower hears that nothing of this lease is to be had
      LOG(WARNING) << "a store to lease " << grant->spec.lease << " failed: " << copied.message();
      return channel->shared_socket()->Shutdown();
    }
    received_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  channel->shared_socket()->Send(EncodeShmMessage(ShmStored{store.ticket}));
}

void ShmDonor::Do(const ShowJob& job) {
  const absl::Status shown = Show(job);
  if (shown.ok()) return;
  LOG_EVERY_T(WARNING, 0.1) << "a lease's channel is closed: " << shown.message();
  job.channel->shared_socket()->Shutdown();  // the loop's thread sees its end
}

// No Fence waits for it. What a grant that is not fenced shows is its own: other memory, of another lease perhaps, comes
// after the fence, which Attach looks for behind Show.
absl::Status ShmDonor::Show(const ShowJob& job) {
  const GrantSpec& spec = job.grant->spec;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckAwaited(job));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<PeerStaging> staging, memory_.MapStaging(job.staging_bytes, job.fds));
  ASSIGN_OR_RETURN(const ShownMemory shown, memory_.Show(spec.offset_bytes, spec.bytes));
  RETURN_IF_ERROR(Attach(job, std::move(staging)));
  events_.OnBorrowerOpened(spec.lease);  // before its borrower can say anything
  SendGrant(job, shown);
  return absl::OkStatus();
}

absl::Status ShmDonor::CheckAwaited(const ShowJob& job) const {
  if (!job.grant->fenced && job.grant->taker == job.channel.get()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("lease ", job.grant->spec.lease.value(), " has ended, or its borrower has"));
}

// Both locks: a channel that has ended is no reader any more.
absl::Status ShmDonor::Attach(const ShowJob& job, std::unique_ptr<PeerStaging> staging) {
  absl::MutexLock readers_lock(&readers_mutex_);
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckAwaited(job));
  job.channel->set_staging(std::move(staging));
  job.grant->channel = job.channel;
  readers_[job.grant->spec.borrower_instance].push_back(job.channel);
  return absl::OkStatus();
}

// From here on the borrower hears of revocations, after its GRANT.
void ShmDonor::SendGrant(const ShowJob& job, const ShownMemory& shown) {
  GrantState& grant = *job.grant;
  ShmSocket& socket = *job.channel->shared_socket();
  std::vector<int> fds;
  {
    absl::MutexLock lock(&mutex_);
    fds.push_back(generations_.fd());
  }
  fds.insert(fds.end(), shown.fds.begin(), shown.fds.end());
  const ShmGrant body = {.epoch = grant.epoch.value(),
                         .bytes = grant.spec.bytes,
                         .word = grant.word,
                         .num_pieces = static_cast<int32_t>(shown.pieces.size())};
  socket.Send(EncodeShmMessage(body, shown.pieces), fds);
  std::optional<absl::Time> leave_by;
  {
    absl::MutexLock lock(&mutex_);
    if (grant.channel != job.channel) return;  // fenced, or its borrower has gone
    grant.shown = true;
    leave_by = grant.leave_by;
  }
  if (!leave_by) return;
  const absl::Duration time_left = std::max(*leave_by - clock_.Now(), absl::ZeroDuration());
  socket.Send(EncodeShmMessage(ShmRevoke{absl::ToInt64Nanoseconds(time_left)}));
}

}  // namespace swiftcache::engine::transport
