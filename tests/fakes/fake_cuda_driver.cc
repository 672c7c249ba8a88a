// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_cuda_driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/cuda_address.h"

namespace swiftcache::engine::backend::cuda {
namespace {

// No address of a host has this bit: whoever follows one of the device's crashes.
constexpr uint64_t kDeviceBit = 1ull << 62;

absl::Status Bad(const std::string& what) { return absl::FailedPreconditionError("fake driver: " + what); }

}  // namespace

FakeCudaDriver::FakeCudaDriver(const Options& options) : options_(options), random_(options.seed) {
  info_ = {.name = "fake GPU",
           .uuid = options.uuid,
           .compute_major = 9,
           .compute_minor = 0,
           .multiprocessors = 4,
           .block_memory_bytes = 227 * 1024,
           .granularity_bytes = options.granularity_bytes,
           .exports = options.exports};
  if (options.adjacent_bytes == 0) return;
  void* const base =
      mmap(nullptr, options.adjacent_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return;
  adjacent_ = static_cast<std::byte*>(base);
  adjacent_left_ = options.adjacent_bytes;
}

FakeCudaDriver::~FakeCudaDriver() {
  Resume();
  std::vector<uint64_t> streams;
  {
    Lock lock(mutex_);
    for (const auto& [handle, stream] : streams_) streams.push_back(handle);
  }
  for (const uint64_t handle : streams) DestroyStream(Stream{handle});
  for (const auto& [address, bytes] : reserved_) munmap(Host(address), bytes);
  if (adjacent_left_ > 0) munmap(adjacent_, adjacent_left_);
}

std::byte* FakeCudaDriver::Host(uint64_t address) { return reinterpret_cast<std::byte*>(address & ~kDeviceBit); }
std::byte* FakeCudaDriver::Host(DeviceAddress address) { return Host(ToNumber(address)); }

void FakeCudaDriver::FailAt(int64_t nth) {
  Lock lock(mutex_);
  calls_until_failure_ = nth;
  has_failed_ = failure_is_for_good_ = false;
}

void FakeCudaDriver::LoseAt(int64_t nth) {
  FailAt(nth);
  Lock lock(mutex_);
  failure_is_for_good_ = true;
}

bool FakeCudaDriver::HasFailed() const {
  Lock lock(mutex_);
  return has_failed_;
}

void FakeCudaDriver::Lose() {
  Lock lock(mutex_);
  lost_ = true;
  changed_.notify_all();
}

void FakeCudaDriver::Refuse(uint64_t reservation) {
  Lock lock(mutex_);
  refused_.insert(reservation);
}

void FakeCudaDriver::Pause() {
  Lock lock(mutex_);
  paused_ = true;
}

void FakeCudaDriver::Resume() {
  Lock lock(mutex_);
  paused_ = false;
  changed_.notify_all();
}

int64_t FakeCudaDriver::unfinished_copies() const {
  Lock lock(mutex_);
  int64_t copies = 0;
  for (const auto& [handle, stream] : streams_) {
    copies += std::count_if(stream->ops.begin(), stream->ops.end(), [](const Op& op) { return op.work != nullptr; });
  }
  return copies;
}

int64_t FakeCudaDriver::runs_copied() const {
  Lock lock(mutex_);
  return runs_copied_;
}

int64_t FakeCudaDriver::grids_copied() const {
  Lock lock(mutex_);
  return grids_copied_;
}

int64_t FakeCudaDriver::allocations() const {
  Lock lock(mutex_);
  return allocations_made_;
}

int64_t FakeCudaDriver::kernels_given() const {
  Lock lock(mutex_);
  return kernels_given_;
}

int64_t FakeCudaDriver::graphs_launched() const {
  Lock lock(mutex_);
  return graphs_launched_;
}

std::string FakeCudaDriver::Misuse() const {
  Lock lock(mutex_);
  return misuse_;
}

std::string FakeCudaDriver::Leaks() const {
  Lock lock(mutex_);
  std::string leaks;
  const auto count = [&](const char* what, size_t left) {
    if (left != 0) absl::StrAppend(&leaks, left, " ", what, "; ");
  };
  count("reservations", reserved_.size());
  count("mappings", mapped_.size());
  count("allocations", allocations_.size());
  count("pieces of host memory", host_memory_.size());
  count("streams", streams_.size());
  count("graphs", graphs_.size());
  count("events", events_.size());
  return leaks;
}

absl::Status FakeCudaDriver::Count(const char* call) const {
  if (lost_) return absl::DataLossError(absl::StrCat(call, ": the device is lost"));
  if (calls_until_failure_ == 0 || --calls_until_failure_ > 0) return absl::OkStatus();
  has_failed_ = true;
  if (failure_is_for_good_) {
    lost_ = true;
    changed_.notify_all();
    return absl::DataLossError(absl::StrCat(call, ": the device is lost"));
  }
  return absl::InternalError(absl::StrCat(call, " was made to fail"));
}

absl::StatusOr<DeviceMemory> FakeCudaDriver::memory() const {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("memory"));
  return DeviceMemory{.total_bytes = options_.total_bytes, .free_bytes = options_.total_bytes - allocated_bytes_};
}

int64_t FakeCudaDriver::allocated_bytes() const {
  Lock lock(mutex_);
  return allocated_bytes_;
}

absl::StatusOr<uint64_t> FakeCudaDriver::ReserveAddresses(int64_t bytes) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("ReserveAddresses"));
  if (bytes <= 0 || bytes % options_.granularity_bytes != 0) return Bad("addresses that are no whole units");
  void* base = nullptr;
  if (bytes <= adjacent_left_) {
    base = std::exchange(adjacent_, adjacent_ + bytes);
    adjacent_left_ -= bytes;
  } else {
    base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (base == MAP_FAILED) return absl::ResourceExhaustedError("fake driver: no addresses");
  const uint64_t address = reinterpret_cast<uint64_t>(base) | (options_.host_addresses ? 0 : kDeviceBit);
  reserved_[address] = bytes;
  return address;
}

absl::Status FakeCudaDriver::FreeAddresses(uint64_t address, int64_t bytes) {
  Lock lock(mutex_);
  const auto it = reserved_.find(address);
  if (it == reserved_.end() || it->second != bytes) {
    Note("addresses are freed that were not reserved so");
    return Bad("unknown addresses");
  }
  const auto first = mapped_.lower_bound(address);
  if (first != mapped_.end() && first->first < address + bytes) {
    Note("addresses are freed at which memory is mapped");
    return Bad("addresses in use");
  }
  munmap(Host(address), bytes);
  refused_.erase(address);
  reserved_.erase(it);
  return Count("FreeAddresses");
}

absl::StatusOr<Allocation> FakeCudaDriver::Allocate(int64_t bytes) {
  Lock lock(mutex_);
  ++allocations_made_;
  RETURN_IF_ERROR(Count("Allocate"));
  if (bytes <= 0 || bytes % options_.granularity_bytes != 0) return Bad("memory that is no whole units");
  if (bytes > options_.total_bytes - allocated_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("Allocate: ", bytes, " bytes are too many"));
  }
  memory::UniqueFd fd(memfd_create("fake-gpu", MFD_CLOEXEC));
  if (!fd.ok() || ftruncate(fd.get(), bytes) != 0) return absl::ResourceExhaustedError("fake driver: no memory");
  // What was in a GPU's memory before is not zeros.
  const std::vector<std::byte> garbage(options_.granularity_bytes, std::byte{0xa5});
  for (int64_t at = 0; at < bytes; at += options_.granularity_bytes) {
    if (pwrite(fd.get(), garbage.data(), garbage.size(), at) != options_.granularity_bytes) {
      return absl::ResourceExhaustedError("fake driver: no memory");
    }
  }
  allocated_bytes_ += bytes;
  own_allocations_[next_handle_] = bytes;
  allocations_[next_handle_] = std::move(fd);
  return Allocation{next_handle_++};
}

absl::Status FakeCudaDriver::Release(Allocation allocation) {
  Lock lock(mutex_);
  const auto handle = static_cast<uint64_t>(allocation);
  if (allocations_.erase(handle) == 0) {
    Note("memory is released that is not there");
    return Bad("unknown allocation");
  }
  if (const auto own = own_allocations_.extract(handle)) allocated_bytes_ -= own.mapped();
  return Count("Release");
}

absl::StatusOr<int> FakeCudaDriver::Export(Allocation allocation) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("Export"));
  const auto it = allocations_.find(static_cast<uint64_t>(allocation));
  if (it == allocations_.end() || !options_.exports) {
    Note("memory is exported that is not there, or by a driver that exports none");
    return Bad("unknown allocation");
  }
  return fcntl(it->second.get(), F_DUPFD_CLOEXEC, 0);
}

absl::StatusOr<Allocation> FakeCudaDriver::Import(int fd) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("Import"));
  struct stat file = {};
  if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &file) != 0 || file.st_size % options_.granularity_bytes != 0) {
    return Bad("the descriptor is of no GPU's memory");
  }
  allocations_[next_handle_] = memory::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return Allocation{next_handle_++};
}

absl::Status FakeCudaDriver::Map(uint64_t address, int64_t bytes, Allocation allocation, Access access) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("Map"));
  const auto it = allocations_.find(static_cast<uint64_t>(allocation));
  auto home = reserved_.upper_bound(address);
  const bool inside = home != reserved_.begin() && (--home)->first <= address &&
                      address + bytes <= home->first + static_cast<uint64_t>(home->second);
  auto next = mapped_.lower_bound(address);
  const bool is_free = (next == mapped_.end() || next->first >= address + bytes) &&
                       (next == mapped_.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= address);
  if (it == allocations_.end() || !inside || !is_free || bytes % options_.granularity_bytes != 0) {
    Note("memory is mapped that is not there, or where something is");
    return Bad("a mapping that cannot be");
  }
  struct stat file = {};
  if (fstat(it->second.get(), &file) != 0 || file.st_size != bytes) {  // a peer may lie about its size
    return Bad(absl::StrCat("the allocation has ", file.st_size, " bytes, not ", bytes));
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  if (mmap(Host(address), bytes, protection, MAP_SHARED | MAP_FIXED, it->second.get(), 0) == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("fake driver: ", std::strerror(errno)));
  }
  mapped_[address] = {.bytes = bytes, .access = access};
  return absl::OkStatus();
}

absl::Status FakeCudaDriver::Unmap(uint64_t address, int64_t bytes) {
  Lock lock(mutex_);
  const auto it = mapped_.find(address);
  if (it == mapped_.end() || it->second.bytes != bytes) {
    Note("memory is unmapped that was not mapped so");
    return Bad("unknown mapping");
  }
  const auto touched = [&] {
    for (const auto& [handle, stream] : streams_) {
      for (const Op& op : stream->ops) {
        for (const Touch& touch : op.touches) {
          if (touch.begin < address + bytes && address < touch.begin + touch.bytes) return true;
        }
      }
    }
    return false;
  };
  // What a lost device was given is forgotten, but for the copy that it is at.
  if (!lost_ && touched()) Note("memory is unmapped that a copy under way touches");
  changed_.wait(lock, [&] { return !touched(); });
  (void)mmap(Host(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  mapped_.erase(address);
  return Count("Unmap");
}

absl::StatusOr<std::byte*> FakeCudaDriver::AllocateHost(int64_t bytes) {
  Lock lock(mutex_);
  ++allocations_made_;
  RETURN_IF_ERROR(Count("AllocateHost"));
  std::vector<std::byte> memory(bytes);
  std::byte* const begin = memory.data();
  host_memory_[begin] = std::move(memory);
  return begin;
}

absl::Status FakeCudaDriver::FreeHost(std::byte* memory) {
  Lock lock(mutex_);
  if (host_memory_.erase(memory) == 0) Note("host memory is freed that is not there");
  return Count("FreeHost");
}

}  // namespace swiftcache::engine::backend::cuda
