// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_link.h"

#include <pthread.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {
namespace {

using backend::cuda::EventFence;

// NCCL and its streams tell nobody when they are done: while something is under way they are asked this often. Streams
// and hosts that wait for events do not wait for the next time.
constexpr absl::Duration kPollEvery = absl::Microseconds(100);
// What NCCL was given has no event until it has settled, some tens of us later: whoever waits for its layer waits for that.
constexpr absl::Duration kPollPosting = absl::Microseconds(10);

// What it calls may own the batch: it is forgotten with this.
void TellEnd(NcclBatch& batch, bool whole) {
  batch.announce = nullptr;
  batch.is_wanted = nullptr;
  batch.land = nullptr;
  std::exchange(batch.ended, nullptr)(whole);
}

bool IsAllDone(const NcclBatch& batch) { return batch.num_done == batch.groups.size(); }

}  // namespace

NcclLink::NcclLink(const Options& options, Hooks hooks, NcclApi& nccl, backend::cuda::Driver& driver,
                   const Clock& clock)
    : options_(options), hooks_(std::move(hooks)), nccl_(nccl), driver_(driver), clock_(clock) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "nccl link");
    Run();
  });
}

void NcclLink::StopSoon() {
  absl::MutexLock lock(&mutex_);
  Note(stopping_);
}

void NcclLink::Stop() {
  if (!thread_.joinable()) return;
  StopSoon();
  thread_.join();
}

void NcclLink::Form() {
  absl::MutexLock lock(&mutex_);
  Note(wanted_);
}

void NcclLink::Join(uint64_t number, const NcclUniqueId& id) {
  absl::MutexLock lock(&mutex_);
  joining_ = {number, id};
  Wake();
}

// The highest counts where several come before the thread looks.
void NcclLink::Break(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  break_ = std::max(break_.value_or(0), number);
  Wake();
}

void NcclLink::Run() {
  while (AwaitWork()) {
    const absl::Status status = Advance();
    if (!status.ok()) GiveUp(status);
  }
  GiveUp(absl::UnavailableError("the channel to the other end is closed"));
  has_stopped_ = true;
}

// False: it is to end.
bool NcclLink::AwaitWork() {
  bool is_busy = forming_;
  {
    absl::MutexLock lock(&mutex_);
    is_busy = is_busy || !batches_.empty();
  }
  {
    const absl::Duration every = posting_ ? kPollPosting : kPollEvery;
    TimedMutexLock lock(&wake_mutex_);
    wake_mutex_.AwaitWithTimeout(absl::Condition(&changed_), is_busy ? every : absl::InfiniteDuration());
    changed_ = false;
  }
  absl::MutexLock lock(&mutex_);
  return !stopping_;
}

absl::Status NcclLink::Advance() {
  RETURN_IF_ERROR(HeedBreak());
  BeginJoining();
  RETURN_IF_ERROR(BeginForming());
  RETURN_IF_ERROR(Settle());
  RETURN_IF_ERROR(Announce());
  RETURN_IF_ERROR(PostNext());
  RETURN_IF_ERROR(MarkDone());
  LoseUnannounced();
  return CheckPatience();
}

// What is given up already is not given up again: each end tells the other, and neither may answer for ever.
absl::Status NcclLink::HeedBreak() {
  bool breaks = false;
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<uint64_t> number = std::exchange(break_, std::nullopt);
    if (!number) return absl::OkStatus();
    if (joining_ && *number >= joining_->number) {
      comm_number_ = std::exchange(joining_, std::nullopt)->number;
      breaks = true;
    }
    breaks = breaks || (comm_ && *number >= comm_number_);
  }
  return breaks ? absl::UnavailableError("the communicator was given up, here or by the other end") : absl::OkStatus();
}

// Rank 1. What is under way is of communicators before it, which may not even have been joined.
void NcclLink::BeginJoining() {
  std::optional<Joining> joining;
  bool replaces = comm_.has_value();
  {
    absl::MutexLock lock(&mutex_);
    joining = std::exchange(joining_, std::nullopt);
    if (!joining) return;
    replaces = replaces || (!batches_.empty() && batches_.front()->number < joining->number);
  }
  if (replaces) {
    comm_number_ = joining->number - 1;
    GiveUp(absl::UnavailableError("the other end has made another communicator"));
  }
  comm_number_ = joining->number;
  const absl::StatusOr<NcclComm> comm = nccl_.Init(joining->id, options_.rank);
  if (!comm.ok()) return GiveUp(comm.status());
  comm_ = *comm;
  forming_ = true;
  forming_since_ = clock_.Now();
}

absl::Status NcclLink::BeginForming() {
  {
    absl::MutexLock lock(&mutex_);
    if (options_.rank != 0 || comm_ || (!wanted_ && batches_.empty())) return absl::OkStatus();
    wanted_ = false;
    ++comm_number_;
  }
  ASSIGN_OR_RETURN(const NcclUniqueId id, nccl_.CreateUniqueId());
  ASSIGN_OR_RETURN(comm_, nccl_.Init(id, options_.rank));
  forming_ = true;
  forming_since_ = clock_.Now();
  if (!hooks_.join(comm_number_, id)) return absl::UnavailableError("nobody hears that a communicator is to be made");
  return absl::OkStatus();
}

// What NCCL was given last is over, or goes on. An event is recorded only now: before that the group is not in the
// stream.
absl::Status NcclLink::Settle() {
  if (!comm_) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool settled, nccl_.Settled(*comm_));
  if (settled && forming_) RETURN_IF_ERROR(Connect());
  if (forming_ && clock_.Now() - forming_since_ >= kFormPatience) {
    return absl::UnavailableError(absl::StrCat("no communicator came about in ", absl::FormatDuration(kFormPatience)));
  }
  if (!settled) return absl::OkStatus();
  if (posting_) {
    RETURN_IF_ERROR(posting_->event->Record(*stream_));
    const Posting posted = *std::exchange(posting_, std::nullopt);
    MarkPosted(*posted.batch, posted.event);
  }
  return absl::OkStatus();
}

// Rank 0 announces no batch before.
absl::Status NcclLink::Connect() {
  if (!trial_) {
    ASSIGN_OR_RETURN(stream_, driver_.CreateStream());
    if (options_.rank == 1) {
      ASSIGN_OR_RETURN(landing_, backend::cuda::DeviceBytes::Allocate(driver_, kLandings * kMaxNcclStoreBytes));
    }
    trial_.emplace(nccl_, driver_, options_.rank);
  }
  ASSIGN_OR_RETURN(const bool connected, trial_->Advance(*comm_, *stream_));
  if (!connected) return absl::OkStatus();
  trial_.reset();
  forming_ = false;
  formed_ = true;
  hooks_.formed();
  return absl::OkStatus();
}

// No more than the other end takes at once: the others follow as these end.
absl::Status NcclLink::Announce() {
  if (options_.rank != 0 || !formed_) return absl::OkStatus();
  for (;;) {
    NcclBatchPtr next;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = std::find_if(batches_.begin(), batches_.end(), [](const auto& b) { return b->number == 0; });
      if (it == batches_.end() || it - batches_.begin() >= static_cast<int64_t>(kMaxNcclBatches)) break;
      next = *it;
      next->number = comm_number_;
    }
    if (!next->announce(comm_number_)) return absl::UnavailableError("nobody hears what is to be sent");
  }
  return absl::OkStatus();
}

// In the order of the batches, and one at a time in NCCL's hands: until it has settled it takes no other.
absl::Status NcclLink::PostNext() {
  while (formed_ && !posting_) {
    NcclBatchPtr batch;
    NcclGroup* group = nullptr;
    std::vector<NcclRun> runs;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = std::find_if(batches_.begin(), batches_.end(),
                                   [](const NcclBatchPtr& b) { return b->num_posted < b->groups.size(); });
      if (it == batches_.end() || !(*it)->admitted || (*it)->number != comm_number_) return absl::OkStatus();
      batch = *it;
      group = &batch->groups[batch->num_posted];
      if (!group->ready || (batch->land && num_received_ - num_landed_ == kLandings)) return absl::OkStatus();
      runs = RunsOf(*batch, *group);
    }
    if (runs.empty()) {
      MarkPosted(*batch, nullptr);
      continue;
    }
    RETURN_IF_ERROR(Give(batch, *group, runs));
    RETURN_IF_ERROR(Settle());
  }
  return absl::OkStatus();
}

std::vector<NcclRun> NcclLink::RunsOf(const NcclBatch& batch, NcclGroup& group) {
  if (batch.land) group.landing = landing_.address() + num_received_ % kLandings * kMaxNcclStoreBytes;
  std::vector<NcclRun> runs;
  uint64_t landing = group.landing;
  for (const NcclGroup::Piece& piece : group.pieces) {
    if (batch.accepted[piece.lease] == 0) continue;
    runs.push_back({.address = batch.land ? landing : piece.run.address, .bytes = piece.run.bytes});
    landing += piece.run.bytes;
  }
  return runs;
}

absl::Status NcclLink::Give(const NcclBatchPtr& batch, NcclGroup& group, const std::vector<NcclRun>& runs) {
  ASSIGN_OR_RETURN(std::shared_ptr<EventFence> event, EventFence::Create(driver_));
  RETURN_IF_ERROR(OrderStream(group));
  RETURN_IF_ERROR(nccl_.Transfer(*comm_, batch->direction, 1 - options_.rank, runs, *stream_));
  posting_ = {batch, std::move(event)};
  if (batch->land) ++num_received_;
  return absl::OkStatus();
}

// Of work that failed nobody reads what it would have written; the other end sends or waits all the same.
absl::Status NcclLink::OrderStream(NcclGroup& group) {
  const absl::Status ordered = OrderBehind(driver_, *stream_, group.after);
  if (!absl::IsAborted(ordered)) return ordered;
  absl::MutexLock lock(&mutex_);
  group.is_behind = true;
  return absl::OkStatus();
}

void NcclLink::MarkPosted(NcclBatch& batch, std::shared_ptr<const EventFence> event) {
  absl::MutexLock lock(&mutex_);
  NcclGroup& group = batch.groups[batch.num_posted++];
  group.event = std::move(event);
  group.posted = true;
}

// Of a lost device no event passes any more.
absl::Status NcclLink::MarkDone() {
  for (;;) {
    std::shared_ptr<const EventFence> event;
    NcclBatchPtr batch, ended;
    const NcclGroup* group = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (!batches_.empty() && IsAllDone(*batches_.front()) && batches_.front()->concluded) {
        ended = batches_.front();
        ended->over = true;
        batches_.pop_front();
      } else {
        const auto it =
            std::find_if_not(batches_.begin(), batches_.end(), [](const NcclBatchPtr& b) { return IsAllDone(*b); });
        if (it == batches_.end() || (*it)->num_done == (*it)->num_posted) return absl::OkStatus();
        batch = *it;
        group = &batch->groups[batch->num_done];
        event = group->event;
      }
    }
    if (ended != nullptr) {
      TellEnd(*ended, true);
      continue;
    }
    if (event != nullptr) {
      ASSIGN_OR_RETURN(const bool passed, event->Ask());
      if (!passed) return absl::OkStatus();
      if (batch->land) Land(*batch, *group);
    }
    absl::MutexLock lock(&mutex_);
    ++batch->num_done;
  }
}

void NcclLink::Land(const NcclBatch& batch, const NcclGroup& group) {
  batch.land(group);
  ++num_landed_;
}

// The other end does not know of them: they can be lost without the communicator, which may still come about. Once it
// has, they wait for those before them, which are not waited for if they do not move.
void NcclLink::LoseUnannounced() {
  std::vector<NcclBatchPtr> lost, hurried;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    for (const NcclBatchPtr& batch : batches_) {
      if (batch->number != 0) continue;
      if (!formed_ && now - batch->posted_at > options_.patience) {
        lost.push_back(batch);
      } else if (batch->hurried) {
        hurried.push_back(batch);
      }
    }
  }
  for (const NcclBatchPtr& batch : hurried) {
    if (!batch->is_wanted()) lost.push_back(batch);
  }
  if (lost.empty()) return;
  {
    absl::MutexLock lock(&mutex_);
    for (const NcclBatchPtr& batch : lost) batch->over = true;
    std::erase_if(batches_, [](const NcclBatchPtr& batch) { return batch->over; });
  }
  for (const NcclBatchPtr& batch : lost) TellEnd(*batch, false);
}

// Where the oldest batch stands, and how long it may stand there.
std::pair<NcclLink::Stage, absl::Duration> NcclLink::OldestStage() const {
  Stage stage;
  backend::Fence after;
  absl::Duration patience;
  {
    absl::MutexLock lock(&mutex_);
    if (batches_.empty() || batches_.front()->number == 0) return {};
    const NcclBatch& batch = *batches_.front();
    const NcclGroup* const next = IsAllDone(batch) ? nullptr : &batch.groups[batch.num_done];
    stage = {.batch = &batch, .progress = batch.num_posted + batch.num_done + (batch.admitted ? 1 : 0)};
    if (batch.admitted && next != nullptr && !next->ready) return {stage, absl::InfiniteDuration()};
    patience = batch.hurried ? kHurriedPatience : options_.patience;
    if (batch.admitted && next != nullptr && !next->is_behind) after = next->after;
  }
  stage.for_peer = after.Passed();
  return {stage, stage.for_peer ? patience : kDevicePatience};
}

absl::Status NcclLink::CheckPatience() {
  const auto [stage, patience] = OldestStage();
  const absl::Time now = clock_.Now();
  if (stage.batch == nullptr || stage != stage_) {
    stage_ = stage;
    stage_since_ = now;
    return absl::OkStatus();
  }
  if (now - stage_since_ <= patience) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("nothing has moved for ", absl::FormatDuration(patience), ", waiting for ",
                                             stage.for_peer ? "the other engine" : "this engine's device"));
}

// The communicator first: its kernels end, and with them the stream. Once the stream is gone nobody writes to what was
// to be received.
void NcclLink::GiveUp(const absl::Status& why) {
  formed_ = forming_ = false;
  stage_ = {};  // of a batch whose address may come again
  const absl::Time begin = clock_.Now();
  if (comm_) nccl_.Abort(*comm_);
  comm_.reset();
  posting_.reset();
  trial_.reset();
  if (stream_) driver_.DestroyStream(*stream_);
  stream_.reset();
  landing_ = {};
  num_received_ = num_landed_ = 0;
  if (const absl::Duration took = clock_.Now() - begin; took > absl::Seconds(1)) {
    LOG(WARNING) << "NCCL needed " << took << " to end communicator " << comm_number_ << ", whose steps waited";
  }
  std::deque<NcclBatchPtr> lost;
  bool ends = false;
  {
    absl::MutexLock lock(&mutex_);
    ends = stopping_;
    wanted_ = false;
    Wake();  // a JOIN that came meanwhile is still to be heeded
    given_up_ = comm_number_;
    std::erase_if(batches_, [&](const NcclBatchPtr& batch) {
      mutex_.AssertHeld();
      const bool loses = stopping_ || batch->number <= comm_number_;
      if (loses) lost.push_back(batch);
      return loses;
    });
    for (const NcclBatchPtr& batch : lost) batch->over = true;
  }
  for (const NcclBatchPtr& batch : lost) TellEnd(*batch, false);
  if (!ends) hooks_.broken(comm_number_, why);
}

}  // namespace swiftcache::engine::transport::nccl
