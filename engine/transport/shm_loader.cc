// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

// Whether `next` continues `run` at both ends.
bool Continues(const LoadPiece& run, const LoadPiece& next) {
  return next.lease == run.lease && next.offset_bytes == run.offset_bytes + run.bytes && next.to == run.to + run.bytes;
}

}  // namespace

// All but the first four are guarded by the loader's lock.
class ShmLoader::Job final : public PendingLoad, public std::enable_shared_from_this<Job> {
 public:
  Job(ShmLoader& loader, std::vector<LoadPiece> what, backend::Fence fence)
      : loader(loader), pieces(std::move(what)), after(std::move(fence)) {
    for (const LoadPiece& piece : pieces) bytes += piece.bytes;
  }
  backend::Fence Arrival() const override;
  std::optional<std::vector<kv::LeaseId>> Lost() const override { return loader.LostOf(*this); }
  std::vector<kv::LeaseId> Await() const override {
    loader.WaitFor(*this);
    return *Lost();
  }

  ShmLoader& loader;
  const std::vector<LoadPiece> pieces;
  const backend::Fence after;
  int64_t bytes = 0;
  bool sent_off = false;  // its bytes have their place on the link
  absl::Time began;
  absl::Time due;  // when the bytes have crossed the link
  bool copied = false;
  std::vector<kv::LeaseId> lost;
};

class ShmLoader::Arrived final : public backend::FenceState {
 public:
  explicit Arrived(std::shared_ptr<const Job> job) : job_(std::move(job)) {}
  bool Passed() const override { return job_->loader.HasArrived(*job_); }
  void Wait() const override { job_->loader.WaitFor(*job_); }

 private:
  const std::shared_ptr<const Job> job_;
};

backend::Fence ShmLoader::Job::Arrival() const {
  return backend::Fence(std::make_shared<const Arrived>(shared_from_this()));
}

ShmLoader::ShmLoader(const ShmBorrower& leases, const Options& options, const Clock& clock)
    : leases_(leases), space_(options.space), clock_(clock), link_(options.link) {
  thread_ = std::thread([this] { Run(); });
}

void ShmLoader::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ShmLoader::NobodyCopies));
}

void ShmLoader::SendOff(Job& job) {
  job.sent_off = true;
  job.began = clock_.Now();
  job.due = link_.Carry(job.bytes, job.began);
}

std::shared_ptr<const PendingLoad> ShmLoader::Begin(std::vector<LoadPiece> pieces, const backend::Fence& after) {
  auto job = std::make_shared<Job>(*this, std::move(pieces), after);
  const bool ready = after.Passed();
  absl::MutexLock lock(&mutex_);
  if (ready) SendOff(*job);
  to_copy_.push_back(job);
  return job;
}

bool ShmLoader::HasArrived(const Job& job) const {
  absl::MutexLock lock(&mutex_);
  return job.copied && (stopping_ || clock_.Now() >= job.due);
}

void ShmLoader::WaitFor(const Job& job) {
  const JobPtr mine = TakeUnbegun(job);
  if (mine != nullptr) Keep(*mine, Copy(mine->pieces));
  absl::MutexLock lock(&mutex_);
  if (mine != nullptr) --waiters_that_copy_;
  mutex_.Await(absl::Condition(&job.copied));
  while (!stopping_) {
    const absl::Duration wait = job.due - clock_.Now();
    if (wait <= absl::ZeroDuration()) break;
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), wait);
  }
}

// Null: it is copied already, or must not be yet.
ShmLoader::JobPtr ShmLoader::TakeUnbegun(const Job& job) {
  if (!job.after.Passed()) return nullptr;
  absl::MutexLock lock(&mutex_);
  const auto it = std::ranges::find(to_copy_, &job, &JobPtr::get);
  if (stopping_ || it == to_copy_.end()) return nullptr;
  JobPtr taken = std::move(*it);
  to_copy_.erase(it);
  ++waiters_that_copy_;
  return taken;
}

std::optional<std::vector<kv::LeaseId>> ShmLoader::LostOf(const Job& job) const {
  absl::MutexLock lock(&mutex_);
  if (!job.copied) return std::nullopt;
  return job.lost;
}

void ShmLoader::AddStats(TransportStats& stats) const {
  absl::MutexLock lock(&mutex_);
  stats.loaded_bytes += stats_.loaded_bytes;
  stats.load_time += stats_.load_time;
  stats.load_rate = stats_.load_rate;
}

void ShmLoader::Run() {
  for (;;) {
    JobPtr job;
    bool stopping = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ShmLoader::HasWork));
      if (to_copy_.empty()) return;
      job = std::move(to_copy_.front());
      to_copy_.pop_front();
      stopping = stopping_;
    }
    if (!stopping) job->after.Wait();
    std::vector<kv::LeaseId> lost;
    if (stopping) {
      for (const LoadPiece& piece : job->pieces) lost.push_back(piece.lease);
    } else {
      lost = Copy(job->pieces);
    }
    Keep(*job, std::move(lost));
  }
}

void ShmLoader::Keep(Job& job, std::vector<kv::LeaseId> lost) {
  absl::MutexLock lock(&mutex_);
  const bool timed = job.sent_off && lost.empty();
  if (!job.sent_off) SendOff(job);
  const absl::Time end = std::max(clock_.Now(), job.due);
  stats_.loaded_bytes += job.bytes;
  stats_.load_time += std::max(end - std::max(job.began, last_loaded_), absl::ZeroDuration());
  if (timed) stats_.load_rate.Note(job.bytes, end - job.began);
  last_loaded_ = std::max(last_loaded_, end);
  job.lost = std::move(lost);
  job.copied = true;
}

// False: the lease changed hands. What was copied before is good all the same, but nobody asks for half a run.
bool ShmLoader::CopyRun(const ShmLease& lease, const LoadPiece& run) const {
  const LeaseView& view = lease.mapped.view;
  CHECK(run.bytes >= 0 && run.offset_bytes >= 0 && run.bytes <= view.bytes &&
        run.offset_bytes <= view.bytes - run.bytes)
      << "load of " << run.bytes << " bytes at " << run.offset_bytes << " of lease " << run.lease;
  const std::byte* const from = space_.Host(view.base) + run.offset_bytes;
  std::byte* const to = space_.Host(run.to);
  bool holds = view.Holds();
  for (int64_t done = 0; holds && done < run.bytes; done += Transport::kMaxCopyBytes) {
    const int64_t bytes = std::min(Transport::kMaxCopyBytes, run.bytes - done);
    std::memcpy(to + done, from + done, bytes);
    view.NoteRead(bytes);
    holds = view.Holds();
  }
  return holds;
}

std::vector<kv::LeaseId> ShmLoader::Copy(const std::vector<LoadPiece>& pieces) const {
  absl::flat_hash_map<kv::LeaseId, std::shared_ptr<const ShmLease>> leases;
  std::vector<kv::LeaseId> lost;
  for (size_t i = 0; i < pieces.size();) {
    LoadPiece run = pieces[i++];
    while (i < pieces.size() && Continues(run, pieces[i])) run.bytes += pieces[i++].bytes;
    auto [it, is_new] = leases.try_emplace(run.lease);
    if (is_new) it->second = leases_.Find(run.lease);
    if (it->second != nullptr && CopyRun(*it->second, run)) continue;
    if (std::find(lost.begin(), lost.end(), run.lease) == lost.end()) lost.push_back(run.lease);
    it->second = nullptr;  // one word decides about all of a lease
  }
  return lost;
}

}  // namespace swiftcache::engine::transport
