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
  thread_ = std::thread([this] { Copy(); });
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
  absl::MutexLock lock(&readers_mutex_);
  readers_.clear();
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
  return grant == nullptr || grant->channel == nullptr ? nullptr : grant->channel->shared_socket();
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
  std::shared_ptr<ShmDonorChannel> channel;  // unmaps staging memory, which is not for under the lock
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

absl::StatusOr<ShmDonor::GrantPtr> ShmDonor::Admit(const ShmHello& hello) {
  absl::MutexLock lock(&mutex_);
  const GrantPtr grant = Find(kv::LeaseId(hello.lease));
  if (grant == nullptr || grant->fenced || !IsSameSecret(grant->spec.capability, TextOf(hello.capability)) ||
      grant->spec.borrower_instance != TextOf(hello.instance)) {
    return absl::PermissionDeniedError(absl::StrCat("lease ", hello.lease, " is not granted to who asks for it"));
  }
  if (std::exchange(grant->taken, true)) {
    return absl::AlreadyExistsError(absl::StrCat("lease ", hello.lease, " has an open channel already"));
  }
  return grant;
}

// What a grant that is not fenced shows is its own: other memory, of another lease perhaps, comes after the fence.
absl::Status ShmDonor::SendGrant(const GrantState& grant, ShmSocket& socket) const {
  ASSIGN_OR_RETURN(const ShownMemory shown, memory_.Show(grant.spec.offset_bytes, grant.spec.bytes));
  std::vector<int> fds;
  {
    absl::MutexLock lock(&mutex_);
    if (grant.fenced) return absl::UnavailableError(absl::StrCat("lease ", grant.spec.lease.value(), " has ended"));
    fds.push_back(generations_.fd());
  }
  fds.insert(fds.end(), shown.fds.begin(), shown.fds.end());
  const ShmGrant body = {.epoch = grant.epoch.value(),
                         .bytes = grant.spec.bytes,
                         .word = grant.word,
                         .num_pieces = static_cast<int32_t>(shown.pieces.size())};
  socket.Send(EncodeShmMessage(body, shown.pieces), fds);
  return absl::OkStatus();
}

// From here on the borrower hears of revocations, after its GRANT.
void ShmDonor::Attach(const GrantPtr& grant, std::shared_ptr<ShmDonorChannel> channel) {
  const std::shared_ptr<ShmSocket> socket = channel->shared_socket();
  std::optional<absl::Time> leave_by;
  {
    absl::MutexLock lock(&mutex_);
    if (grant->fenced) return socket->Shutdown();
    grant->channel = channel;
    leave_by = grant->leave_by;
  }
  {
    absl::MutexLock lock(&readers_mutex_);
    readers_[grant->spec.borrower_instance].push_back(std::move(channel));
  }
  if (leave_by) {
    const absl::Duration time_left = std::max(*leave_by - clock_.Now(), absl::ZeroDuration());
    socket->Send(EncodeShmMessage(ShmRevoke{absl::ToInt64Nanoseconds(time_left)}));
  }
  events_.OnBorrowerOpened(grant->spec.lease);
}

absl::Status ShmDonor::Enqueue(const GrantPtr& grant, const ShmDonorChannel& channel, const ShmStore& store) {
  RETURN_IF_ERROR(CheckShmStore(store, grant->spec.bytes, channel.staging().bytes()));
  absl::MutexLock lock(&mutex_);
  if (grant->fenced) return absl::OkStatus();  // too late; the end of the channel tells it
  if (grant->stores.size() >= kMaxUnanswered) {
    return absl::InvalidArgumentError(absl::StrCat("a borrower has over ", kMaxUnanswered, " stores unanswered"));
  }
  if (grant->stores.empty()) with_stores_.push_back(grant);
  grant->stores.push_back(store);
  return absl::OkStatus();
}

void ShmDonor::Detach(const GrantPtr& grant) {
  {
    absl::MutexLock lock(&mutex_);
    if (grant->fenced) return;
    grant->taken = false;
    grant->stores.clear();
    grant->channel = nullptr;
  }
  events_.OnBorrowerGone(grant->spec.lease);
}

void ShmDonor::ForgetReader(const ShmDonorChannel& channel) {
  absl::MutexLock lock(&readers_mutex_);
  const auto reader = readers_.find(channel.borrower());
  if (reader == readers_.end()) return;
  std::erase_if(reader->second, [&](const auto& known) { return known.get() == &channel; });
  if (reader->second.empty()) readers_.erase(reader);
}

// One store of each lease in turn.
void ShmDonor::Copy() {
  for (;;) {
    GrantPtr grant;
    std::shared_ptr<ShmDonorChannel> channel;
    ShmStore store = {};
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ShmDonor::HasWork));
      if (stopping_) return;
      grant = with_stores_.front();
      with_stores_.pop_front();
      if (grant->stores.empty()) continue;  // fenced, or its borrower has gone
      store = grant->stores.front();
      grant->stores.pop_front();
      if (!grant->stores.empty()) with_stores_.push_back(grant);
      channel = grant->channel;
    }
    if (channel != nullptr) CopyIn(grant, channel, store);
  }
}

bool ShmDonor::Begin(const GrantPtr& grant, const std::shared_ptr<ShmDonorChannel>& channel) {
  absl::MutexLock lock(&mutex_);
  if (grant->fenced || grant->channel != channel) return false;
  grant->copying = true;
  return true;
}

void ShmDonor::CopyIn(const GrantPtr& grant, const std::shared_ptr<ShmDonorChannel>& channel, const ShmStore& store) {
  const int64_t to = grant->spec.offset_bytes + store.offset, most_bytes = memory_.most_bytes_a_copy();
  for (int64_t done = 0; done < store.bytes; done += most_bytes) {
    const int64_t bytes = std::min(most_bytes, store.bytes - done);
    if (!Begin(grant, channel)) return;
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

}  // namespace swiftcache::engine::transport
