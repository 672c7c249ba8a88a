// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/core_share.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "engine/memory/own_file.h"

namespace swiftcache::engine::backend::cpu {

// What the file holds, in zeros at first.
struct CoreShare::Page {
  struct alignas(64) Counter {
    std::atomic<uint64_t> beats;
    std::atomic<uint64_t> quota_group;  // AllowedCores'
  };
  alignas(64) std::atomic<uint64_t> computing;  // bit i: the engine at place i
  Counter counters[kMaxEngines];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

namespace {

constexpr int kAttempts = 1000;

uint64_t Bit(int place) { return uint64_t{1} << place; }

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<memory::UniqueFd> OpenFile(const std::string& folder, const std::string& path, int64_t bytes) {
  ASSIGN_OR_RETURN(memory::UniqueFd file, memory::OpenOwnFile(folder, path));
  struct statfs system = {};
  if (fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    unlink(path.c_str());
    return absl::FailedPreconditionError(absl::StrCat(path, " is not on a tmpfs"));
  }
  struct stat found = {};
  if (fstat(file.get(), &found) != 0 || (found.st_size < bytes && ftruncate(file.get(), bytes) != 0)) {
    return Bad(path, std::strerror(errno));
  }
  return file;
}

// Whoever left last may have removed it meanwhile.
bool IsThere(int file) {
  struct stat found = {};
  return fstat(file, &found) == 0 && found.st_nlink > 0;
}

// Bytes of the file, one for each place, until the process ends. All of them or none. False: another has one of them.
bool SetLock(int file, short type, int first, int count) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = first;
  lock.l_len = count;
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

// No such lock: all are taken.
std::optional<int> TakePlace(int file) {
  for (int place = 0; place < CoreShare::kMaxEngines; ++place) {
    if (SetLock(file, F_WRLCK, place, 1)) return place;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoreShare>> CoreShare::Join(const std::string& folder, const AllowedCores& cores,
                                                           const Clock& clock, bool remove_folder) {
  const std::string path = absl::StrCat(folder, "/cores-", cores.set);
  absl::Status status = Bad(path, "is removed as often as it is made");
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto file = OpenFile(folder, path, sizeof(Page));
    if (absl::IsNotFound(file.status())) continue;
    if (!file.ok()) return file.status();
    const std::optional<int> place = TakePlace(file->get());
    if (!IsThere(file->get())) continue;
    if (!place) {  // or whoever ends last has just locked them all
      status = absl::ResourceExhaustedError(absl::StrCat(path, ": ", kMaxEngines, " engines are there already"));
      absl::SleepFor(absl::Milliseconds(1));
      continue;
    }
    void* const page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
    if (page == MAP_FAILED) return Bad(path, std::strerror(errno));
    Seat seat{*std::move(file), path, remove_folder ? folder : "", static_cast<Page*>(page), *place};
    return std::unique_ptr<CoreShare>(new CoreShare(std::move(seat), cores, clock));
  }
  return status;
}

CoreShare::CoreShare(Seat seat, const AllowedCores& cores, const Clock& clock)
    : seat_(std::move(seat)), page_(seat_.page), place_(seat_.place), cores_(cores), clock_(clock) {
  Leave();  // who had the place before may have been killed
  page_->counters[place_].quota_group = cores_.quota_group;
}

// Its own place is free before it asks for all: of several that end at once, each would else see the others' and none
// remove the file. With all places locked nobody joins: who opened the file meanwhile finds it removed, and makes another,
// which is not to be removed here.
CoreShare::~CoreShare() {
  Leave();
  munmap(page_, sizeof(Page));
  const int file = seat_.file.get();
  SetLock(file, F_UNLCK, place_, 1);
  if (!SetLock(file, F_WRLCK, 0, kMaxEngines) || !IsThere(file)) return;
  unlink(seat_.path.c_str());
  if (!seat_.folder_to_remove.empty()) rmdir(seat_.folder_to_remove.c_str());
}

// The counter moves before the bit is there: whoever sees the bit for the first time finds a counter that has moved.
void CoreShare::Enter() {
  const absl::Time now = clock_.Now();
  page_->counters[place_].beats.fetch_add(1);
  page_->computing.fetch_or(Bit(place_));
  stale_ = 0;
  for (uint64_t left = Others(); left != 0; left &= left - 1) {
    const int other = std::countr_zero(left);
    const uint64_t beats = page_->counters[other].beats.load();
    if (std::exchange(beats_[other], beats) != beats) moved_at_[other] = now;
    if (now - moved_at_[other] > kStale) stale_ |= Bit(other);
  }
}

void CoreShare::Leave() { page_->computing.fetch_and(~Bit(place_)); }

uint64_t CoreShare::Others() const { return page_->computing.load(std::memory_order_relaxed) & ~Bit(place_) & ~stale_; }

uint64_t CoreShare::OfMyQuota(uint64_t others) const {
  uint64_t mine = 0;
  for (; others != 0; others &= others - 1) {
    const int other = std::countr_zero(others);
    if (page_->counters[other].quota_group.load() == cores_.quota_group) mine |= Bit(other);
  }
  return mine;
}

// What does not go round goes to the first places.
int CoreShare::PartOf(int cores, uint64_t others) const {
  const int engines = std::popcount(others) + 1, before = std::popcount(others & (Bit(place_) - 1));
  return cores / engines + (before < cores % engines ? 1 : 0);
}

int CoreShare::Threads() {
  page_->counters[place_].beats.fetch_add(1, std::memory_order_relaxed);
  const uint64_t others = Others();
  if (threads_ == 0 || others != counted_) {
    const int of_quota = cores_.quota_group == 0 ? cores_.usable : PartOf(cores_.usable, OfMyQuota(others));
    threads_ = std::max(1, std::min(PartOf(cores_.in_set, others), of_quota));
    counted_ = others;
  }
  return threads_;
}

}  // namespace swiftcache::engine::backend::cpu
