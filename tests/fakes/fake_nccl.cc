// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_nccl.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace swiftcache::engine::transport::nccl {

struct FakeNccl::Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  bool joined[2] = {}, aborted[2] = {};
  int copying = 0;                                // from one rank's memory to the other's
  std::vector<std::shared_ptr<Group>> groups[2];  // by rank, in the order of their calls
};

namespace {

std::mutex meetings_mutex;
uint64_t next_id = 1;

}  // namespace

void FakeNccl::FailAt(int64_t nth) {
  std::lock_guard lock(mutex_);
  calls_until_failure_ = nth;
  has_failed_ = false;
}

bool FakeNccl::HasFailed() const {
  std::lock_guard lock(mutex_);
  return has_failed_;
}

void FakeNccl::Mute() {
  std::lock_guard lock(mutex_);
  muted_ = true;
}

void FakeNccl::Unmute() {
  std::lock_guard lock(mutex_);
  muted_ = false;
}

void FakeNccl::ConnectIn(absl::Duration time) {
  std::lock_guard lock(mutex_);
  connect_in_ = time;
}

void FakeNccl::BeforeSends(std::function<void()> act) { Set(before_sends_, std::move(act)); }
void FakeNccl::BeforeAborts(std::function<void()> act) { Set(before_aborts_, std::move(act)); }
void FakeNccl::BeforeTransfers(std::function<void()> act) { Set(before_transfers_, std::move(act)); }

void FakeNccl::Set(Hook& hook, std::function<void()> act) {
  std::unique_lock lock(mutex_);
  hook.act = std::move(act);
  hook_returned_.wait(lock, [&] { return hook.running == 0; });
}

void FakeNccl::Call(Hook& hook) {
  std::unique_lock lock(mutex_);
  if (!hook.act) return;
  const std::function<void()> now = hook.act;
  ++hook.running;
  lock.unlock();
  now();
  lock.lock();
  --hook.running;
  hook_returned_.notify_all();
}

std::string FakeNccl::Misuse() const {
  std::lock_guard lock(mutex_);
  return misuse_;
}

void FakeNccl::ForgetMisuse() {
  std::lock_guard lock(mutex_);
  misuse_.clear();
}

int64_t FakeNccl::num_communicators() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(comms_.size());
}

int64_t FakeNccl::num_made() const {
  std::lock_guard lock(mutex_);
  return num_made_;
}

int64_t FakeNccl::num_groups() const {
  std::lock_guard lock(mutex_);
  return num_groups_;
}

absl::Status FakeNccl::Count(const char* call) {
  if (calls_until_failure_ == 0 || --calls_until_failure_ > 0) return absl::OkStatus();
  has_failed_ = true;
  return absl::InternalError(absl::StrCat(call, ": made to fail"));
}

absl::StatusOr<NcclUniqueId> FakeNccl::CreateUniqueId() {
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count("CreateUniqueId"));
  std::lock_guard meetings_lock(meetings_mutex);
  NcclUniqueId id = {};
  std::memcpy(id.data(), &next_id, sizeof next_id);
  ++next_id;
  return id;
}

absl::StatusOr<NcclComm> FakeNccl::Init(const NcclUniqueId& id, int rank) {
  static auto* const meetings = new std::map<NcclUniqueId, std::weak_ptr<Meeting>>;
  std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Count("Init"));
  std::shared_ptr<Meeting> meeting;
  {
    std::lock_guard meetings_lock(meetings_mutex);
    std::weak_ptr<Meeting>& known = (*meetings)[id];
    meeting = known.lock();
    if (meeting == nullptr) known = meeting = std::make_shared<Meeting>();
  }
  {
    std::lock_guard meeting_lock(meeting->mutex);
    if (std::exchange(meeting->joined[rank], true)) Note("a rank joins twice");
  }
  comms_[next_comm_] = {.meeting = std::move(meeting), .rank = rank, .polls = settle_polls_};
  ++num_made_;
  return NcclComm{next_comm_++};
}

// A new communicator settles once both ranks have joined.
absl::StatusOr<bool> FakeNccl::Settled(NcclComm handle) {
  std::lock_guard lock(mutex_);
  const auto it = comms_.find(static_cast<uint64_t>(handle));
  if (it == comms_.end() || it->second.failed) {
    Note("Settled of a communicator that is gone, or has failed");
    return absl::InternalError("unknown communicator");
  }
  Comm& comm = it->second;
  const absl::Status counted = Count("Settled");
  if (!counted.ok()) {
    comm.failed = true;
    return counted;
  }
  if (comm.settled) return true;
  if (muted_ || --comm.polls > 0 || absl::Now() < comm.settles_at) return false;
  if (comm.given != nullptr) {
    const absl::Status launched = Launch(comm);
    comm.failed = !launched.ok();
    RETURN_IF_ERROR(launched);
  }
  std::lock_guard meeting_lock(comm.meeting->mutex);
  comm.settled = comm.meeting->joined[0] && comm.meeting->joined[1];
  return comm.settled;
}

absl::Status FakeNccl::Transfer(NcclComm handle, NcclDirection direction, int peer, std::span<const NcclRun> runs,
                                backend::cuda::Stream stream) {
  Call(before_transfers_);
  std::lock_guard lock(mutex_);
  const auto it = comms_.find(static_cast<uint64_t>(handle));
  if (it == comms_.end() || it->second.failed || !it->second.settled) {
    Note("Transfer on a communicator that is gone, has failed, or has not settled");
    return absl::InternalError("unknown communicator");
  }
  Comm& comm = it->second;
  if (peer != 1 - comm.rank || runs.empty()) Note("a group of nothing, or for nobody");
  const absl::Status counted = Count("Transfer");
  if (!counted.ok()) {
    comm.failed = true;
    return counted;
  }
  const bool connects = comm.connected.insert(direction).second;
  comm.settles_at = connects ? absl::Now() + connect_in_ : absl::InfinitePast();
  if (!connects) ++num_groups_;
  comm.given =
      std::make_shared<Group>(Group{.direction = direction, .runs = {runs.begin(), runs.end()}, .connects = connects});
  comm.stream = stream;
  comm.settled = false;
  comm.polls = settle_polls_;
  return absl::OkStatus();
}

absl::Status FakeNccl::Launch(Comm& comm) {
  const std::shared_ptr<Group> group = std::exchange(comm.given, nullptr);
  size_t index = 0;
  {
    std::lock_guard lock(comm.meeting->mutex);
    index = comm.meeting->groups[comm.rank].size();
    comm.meeting->groups[comm.rank].push_back(group);
  }
  return driver_.Launch(comm.stream, [this, meeting = comm.meeting, rank = comm.rank, index, group] {
    RunGroup(*meeting, rank, index, group);
  });
}

bool FakeNccl::Match(const Group& a, const Group& b) {
  if (a.direction == b.direction || a.runs.size() != b.runs.size()) return false;
  for (size_t i = 0; i < a.runs.size(); ++i) {
    if (a.runs[i].bytes != b.runs[i].bytes) return false;
  }
  return true;
}

// The kernel. Groups that do not match wait until somebody aborts, as those of the real one may.
void FakeNccl::RunGroup(Meeting& meeting, int rank, size_t index, const std::shared_ptr<Group>& group) {
  const bool sends = group->direction == NcclDirection::kSend;
  if (sends && !group->connects) Call(before_sends_);
  std::unique_lock lock(meeting.mutex);
  group->there = true;
  meeting.changed.notify_all();
  const auto& others = meeting.groups[1 - rank];
  meeting.changed.wait(lock, [&] { return meeting.aborted[rank] || (others.size() > index && others[index]->there); });
  if (meeting.aborted[rank]) return;
  const std::shared_ptr<Group> other = others[index];
  if (!Match(*group, *other)) {
    lock.unlock();
    {
      std::lock_guard own_lock(mutex_);
      Note("a group does not match the other rank's");
    }
    lock.lock();
    meeting.changed.wait(lock, [&] { return meeting.aborted[rank]; });
    return;
  }
  if (sends || meeting.aborted[1 - rank]) {
    meeting.changed.wait(lock, [&] { return other->done || meeting.aborted[rank]; });
    return;
  }
  ++meeting.copying;
  lock.unlock();
  for (size_t i = 0; i < group->runs.size(); ++i) {
    std::memcpy(backend::cuda::FakeCudaDriver::Host(group->runs[i].address),
                backend::cuda::FakeCudaDriver::Host(other->runs[i].address), group->runs[i].bytes);
  }
  lock.lock();
  --meeting.copying;
  group->done = true;
  meeting.changed.notify_all();
}

void FakeNccl::Abort(NcclComm handle) {
  Call(before_aborts_);
  Comm comm;
  {
    std::lock_guard lock(mutex_);
    const auto it = comms_.find(static_cast<uint64_t>(handle));
    if (it == comms_.end()) return Note("Abort of a communicator that is gone");
    comm = std::move(it->second);
    comms_.erase(it);
  }
  std::unique_lock lock(comm.meeting->mutex);
  comm.meeting->aborted[comm.rank] = true;
  comm.meeting->changed.notify_all();
  comm.meeting->changed.wait(lock, [&] { return comm.meeting->copying == 0; });
}

}  // namespace swiftcache::engine::transport::nccl
