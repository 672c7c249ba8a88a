// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/cuda_ipc/cuda_loader.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/backend/cuda/event_fence.h"
#include "engine/transport/cuda_ipc/copy_plan.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

using backend::cuda::CopyLane;
using backend::cuda::DeviceCopy;
using backend::cuda::EventFence;
using backend::cuda::ToNumber;

}  // namespace

// Begin fills it where it gives the copies to the device itself, else the thread does; `known` and `lost` are guarded by
// the loader's lock, and nothing changes once `known` is true.
class CudaLoader::Job final : public PendingLoad, public std::enable_shared_from_this<Job> {
 public:
  Job(const CudaLoader& loader, std::vector<LoadPiece> what, backend::Fence fence)
      : loader(loader), pieces(std::move(what)), after(std::move(fence)) {}

  backend::Fence Arrival() const override { return arrival; }
  std::optional<std::vector<kv::LeaseId>> Lost() const override {
    if (!loader.IsKnown(*this)) return std::nullopt;
    return lost;
  }
  std::vector<kv::LeaseId> Await() const override {
    loader.WaitFor(*this);
    return lost;
  }
  void Lose(kv::LeaseId lease) {
    if (std::find(lost.begin(), lost.end(), lease) == lost.end()) lost.push_back(lease);
  }

  const CudaLoader& loader;
  const std::vector<LoadPiece> pieces;
  const backend::Fence after;
  backend::Fence arrival;  // set by Begin
  bool given = false;      // to the device
  absl::Time given_at;
  int64_t bytes = 0;  // that it copies
  std::shared_ptr<const EventFence> copied;
  std::vector<std::shared_ptr<const ShmLease>> leases;  // mapped as long as they are copied from
  std::vector<kv::LeaseId> lost;
  bool known = false;
};

// Of a load that the device has not been given: it is there when the thread says what of it is lost.
class CudaLoader::Known final : public backend::FenceState {
 public:
  explicit Known(std::weak_ptr<const Job> job) : job_(std::move(job)) {}
  bool Passed() const override {
    const auto job = job_.lock();
    return job == nullptr || job->loader.IsKnown(*job);
  }
  void Wait() const override {
    if (const auto job = job_.lock()) job->loader.WaitFor(*job);
  }

 private:
  const std::weak_ptr<const Job> job_;  // has its arrival, so that sharing it would be a circle
};

CudaLoader::CudaLoader(backend::cuda::Driver& driver, const ShmBorrower& leases, const Clock& clock)
    : driver_(driver), leases_(leases), clock_(clock), lane_(driver) {
  thread_ = std::thread([this] { Run(); });
}

void CudaLoader::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::shared_ptr<const PendingLoad> CudaLoader::Begin(std::vector<LoadPiece> pieces, const backend::Fence& after) {
  auto job = std::make_shared<Job>(*this, std::move(pieces), after);
  if (backend::cuda::IsOrderable(driver_, after)) Give(*job);
  if (!job->given) {
    job->arrival = backend::Fence(std::make_shared<const Known>(job));
  } else if (job->copied != nullptr) {
    job->arrival = backend::Fence(job->copied);
  }
  absl::MutexLock lock(&mutex_);
  begun_.push_back(job);
  return job;
}

// For each of job.leases, which are open and hold so far; the others are lost at once.
std::vector<std::vector<DeviceCopy>> CudaLoader::Locate(Job& job) const {
  absl::flat_hash_map<kv::LeaseId, std::optional<size_t>> places;  // in job.leases; none: lost
  std::vector<std::vector<DeviceCopy>> copies;
  for (const LoadPiece& piece : job.pieces) {
    const auto [it, is_new] = places.try_emplace(piece.lease);
    if (is_new) {
      auto lease = leases_.Find(piece.lease);
      if (lease != nullptr && lease->mapped.view.Holds()) {
        it->second = copies.size();
        job.leases.push_back(std::move(lease));
        copies.emplace_back();
      }
    }
    if (!it->second) {
      job.Lose(piece.lease);
      continue;
    }
    const LeaseView& view = job.leases[*it->second]->mapped.view;
    CHECK(piece.bytes >= 0 && piece.offset_bytes >= 0 && piece.bytes <= view.bytes &&
          piece.offset_bytes <= view.bytes - piece.bytes)
        << "load of " << piece.bytes << " bytes at " << piece.offset_bytes << " of lease " << piece.lease;
    copies[*it->second].push_back(
        {.to = ToNumber(piece.to), .from = ToNumber(view.base + piece.offset_bytes), .bytes = piece.bytes});
    job.bytes += piece.bytes;
    view.NoteRead(piece.bytes);
  }
  return copies;
}

// No copy is of two leases, whose addresses may be adjacent though their memory is not of one GPU. All are given at once;
// where the driver refuses that, lease by lease, so that one whose memory has become unreadable takes no other with it.
void CudaLoader::Give(Job& job) {
  job.given = true;
  job.given_at = clock_.Now();
  std::vector<CopyLane::Copies> plans;  // of job.leases
  CopyLane::Copies all;
  for (const std::vector<DeviceCopy>& pieces : Locate(job)) {
    const CopyLane::Copies& plan = plans.emplace_back(PlanCopies(pieces));
    all.runs.insert(all.runs.end(), plan.runs.begin(), plan.runs.end());
    all.grids.insert(all.grids.end(), plan.grids.begin(), plan.grids.end());
  }
  if (all.runs.empty() && all.grids.empty()) return;
  auto copied = lane_.Begin(all, job.after);
  if (copied.ok()) {
    job.copied = *std::move(copied);
    return;
  }
  LOG_EVERY_T(WARNING, 1) << "leased memory could not be loaded: " << copied.status().message();
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans.size() > 1) copied = lane_.Begin(plans[i], job.after);
    if (copied.ok()) {
      job.copied = *std::move(copied);  // the last one passes last
    } else {
      job.Lose(job.leases[i]->spec.lease);
    }
  }
}

void CudaLoader::Run() {
  for (;;) {
    JobPtr job;
    bool stopping = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CudaLoader::HasWork));
      if (begun_.empty()) return;
      job = std::move(begun_.front());
      begun_.pop_front();
      stopping = stopping_;
    }
    if (!job->given && stopping) {
      for (const LoadPiece& piece : job->pieces) job->Lose(piece.lease);
    } else {
      job->after.Wait();  // from here on the device copies: that is the time it takes
    }
    const absl::Time began = clock_.Now();
    if (!job->given && !stopping) Give(*job);
    Finish(*job);
    absl::MutexLock lock(&mutex_);
    const absl::Time end = clock_.Now();
    stats_.loaded_bytes += job->bytes;
    stats_.load_time += end - std::max(began, std::min(end, last_loaded_));
    if (job->lost.empty()) stats_.load_rate.Note(job->bytes, end - job->given_at);
    last_loaded_ = end;
    job->known = true;
  }
}

// The words are compared when nothing of the job is under way any more, and not before.
void CudaLoader::Finish(Job& job) {
  if (job.copied != nullptr) {
    const absl::Status copied = lane_.Finish(*job.copied);
    LOG_IF(WARNING, !copied.ok()) << "leased memory could not be loaded: " << copied.message();
    for (const auto& lease : job.leases) {
      if (!copied.ok() || !lease->mapped.view.Holds()) job.Lose(lease->spec.lease);
    }
  }
  job.leases.clear();  // a closed one is unmapped here
}

void CudaLoader::AddStats(TransportStats& stats) const {
  absl::MutexLock lock(&mutex_);
  stats.loaded_bytes += stats_.loaded_bytes;
  stats.load_time += stats_.load_time;
  stats.load_rate = stats_.load_rate;
}

bool CudaLoader::IsKnown(const Job& job) const {
  absl::MutexLock lock(&mutex_);
  return job.known;
}

void CudaLoader::WaitFor(const Job& job) const {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&job.known));
}

}  // namespace swiftcache::engine::transport::cuda_ipc
