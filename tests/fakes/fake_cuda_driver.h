// SPDX-License-Identifier: Apache-2.0
// A GPU's driver without a GPU: its memory is the host's, its addresses are none of the host's, and its streams are
// threads that work late, so that whatever is not ordered by events comes out of order sooner or later.
//
//   FakeCudaDriver driver({.seed = 7});
//   driver.FailAt(12);                              // the twelfth call from here on fails, and no other
//   ... EXPECT_EQ(driver.Misuse(), ""); EXPECT_EQ(driver.Leaks(), "");
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/device_address.h"
#include "engine/memory/sealed_memory.h"

namespace swiftcache::engine::backend::cuda {

/// One process's driver; several of them, in one process or not, share memory through descriptors. An allocation is a
/// memfd, a mapping one of it at reserved addresses, read-only where it was mapped so.
/// Thread-safety: safe. Ownership: owns all that was not given back. Errors: the Driver's; what no honest caller does is
/// noted in Misuse. A call that gives something back and is made to fail gives it back all the same, as a driver does
/// that reports an earlier fault.
class FakeCudaDriver : public Driver {
 public:
  struct Options {
    std::string uuid = "GPU-00000000-fake";
    int64_t granularity_bytes = 64 << 10;
    int64_t total_bytes = 256ll << 20;
    bool exports = true;
    bool host_addresses = false;  // the device's are the host's: kernels follow them as they are
    uint64_t seed = 1;            // of the delays
    int64_t most_late_us = 100;   // before a copy begins
    int64_t adjacent_bytes = 0;   // the first reservations of so many bytes together lie one behind the other
    std::function<void(const DeviceCopy&)> on_copy = {};  // called by the stream's thread at each run that it copies
  };
  explicit FakeCudaDriver(const Options& options);
  FakeCudaDriver() : FakeCudaDriver(Options()) {}
  ~FakeCudaDriver() override;

  /// The n-th call from now on, counted from 1, fails, once.
  void FailAt(int64_t nth);
  /// With the n-th call from now on the device is lost.
  void LoseAt(int64_t nth);
  /// Whether it has.
  bool HasFailed() const;
  /// From now on every call says DATA_LOSS and no stream does anything.
  void Lose();
  /// From now on no copy is taken that touches the reservation at this address, as where the memory's owner has died.
  void Refuse(uint64_t reservation);
  /// No copy begins until Resume; Lose and the end resume, too.
  void Pause();
  void Resume();
  /// Copies that were begun and those that wait.
  int64_t unfinished_copies() const;
  /// Copies that were carried out, of either kind.
  int64_t runs_copied() const;
  int64_t grids_copied() const;
  /// Calls of Allocate and AllocateHost.
  int64_t allocations() const;
  /// Kernels that were given one by one, captured or not, and graphs that were launched.
  int64_t kernels_given() const;
  int64_t graphs_launched() const;
  /// What was done that must not be, a line each.
  std::string Misuse() const;
  /// What was not given back: names and counts; empty where there is nothing.
  std::string Leaks() const;

  /// Gives a stream a kernel: something of the host that runs in its turn.
  absl::Status Launch(Stream stream, std::function<void()> kernel);

  /// Where the host finds what lies at an address of this driver.
  static std::byte* Host(uint64_t address);
  static std::byte* Host(DeviceAddress address);

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<DeviceMemory> memory() const override;
  int64_t allocated_bytes() const override;
  absl::StatusOr<uint64_t> ReserveAddresses(int64_t bytes) override;
  absl::Status FreeAddresses(uint64_t address, int64_t bytes) override;
  absl::StatusOr<Allocation> Allocate(int64_t bytes) override;
  absl::Status Release(Allocation allocation) override;
  absl::StatusOr<int> Export(Allocation allocation) override;
  absl::StatusOr<Allocation> Import(int fd) override;
  absl::Status Map(uint64_t address, int64_t bytes, Allocation allocation, Access access) override;
  absl::Status Unmap(uint64_t address, int64_t bytes) override;
  absl::StatusOr<std::byte*> AllocateHost(int64_t bytes) override;
  absl::Status FreeHost(std::byte* memory) override;
  absl::StatusOr<Stream> CreateStream() override;
  void DestroyStream(Stream stream) override;
  void Finish(Stream stream) override;
  absl::StatusOr<Event> CreateEvent() override;
  void DestroyEvent(Event event) override;
  absl::Status Record(Event event, Stream stream) override;
  absl::Status Wait(Stream stream, Event event) override;
  absl::StatusOr<bool> Passed(Event event) override;
  absl::Status Synchronize(Event event) override;
  absl::Status BeginCapture(Stream stream) override;
  absl::StatusOr<Graph> EndCapture(Stream stream) override;
  void DestroyGraph(Graph graph) override;
  absl::Status LaunchGraph(Stream stream, Graph graph) override;
  absl::Status Copy(Stream stream, std::span<const DeviceCopy> copies) override;
  absl::Status Copy2D(Stream stream, const DeviceCopy2D& copy) override;
  absl::Status Zero(Stream stream, uint64_t address, int64_t bytes) override;

 private:
  struct Touch {
    uint64_t begin = 0;
    int64_t bytes = 0;
    bool writes = false;
  };
  struct Op {
    std::vector<Touch> touches;   // what a copy touches
    std::function<void()> work;   // of a copy; without the lock
    std::function<bool()> ready;  // of a wait; with the lock
    std::function<void()> mark;   // of a record; with the lock
    int64_t runs = 0, grids = 0;
  };
  struct StreamState {
    std::deque<Op> ops;  // the first is under way
    bool stopping = false;
    std::optional<std::vector<Op>> captured;  // while it is
    std::thread thread;
  };
  struct EventState {
    int64_t recorded = 0, passed = 0;
  };
  struct MappedRange {
    int64_t bytes = 0;
    Access access = Access::kRead;
  };
  using Lock = std::unique_lock<std::mutex>;

  absl::Status Count(const char* call) const;  // with the lock: the injected failure, or OK
  void Note(const std::string& misuse) const { misuse_ += misuse + "\n"; }
  static uint64_t ToHostNumber(uint64_t address) { return reinterpret_cast<uint64_t>(Host(address)); }
  bool IsMapped(const Touch& touch) const;
  std::optional<std::pair<uint64_t, int64_t>> ReservationOf(uint64_t address) const;  // address and bytes
  absl::Status Give(const char* call, Stream stream, Op op);
  void Work(StreamState& stream);
  std::shared_ptr<EventState> Find(Event event) const;

  const Options options_;
  DeviceInfo info_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int64_t calls_until_failure_ = 0;  // 0: none
  mutable bool has_failed_ = false, failure_is_for_good_ = false;
  mutable std::string misuse_;
  mutable bool lost_ = false;
  bool paused_ = false;
  uint64_t next_handle_ = 1;
  int64_t allocations_made_ = 0;
  int64_t runs_copied_ = 0, grids_copied_ = 0, kernels_given_ = 0, graphs_launched_ = 0;
  std::mt19937_64 random_;
  std::map<uint64_t, int64_t> reserved_;  // bytes, by address
  std::set<uint64_t> refused_;            // of reserved_
  std::byte* adjacent_ = nullptr;         // the rest of Options::adjacent_bytes
  int64_t adjacent_left_ = 0;
  std::map<uint64_t, MappedRange> mapped_;
  std::map<uint64_t, memory::UniqueFd> allocations_;
  int64_t allocated_bytes_ = 0;  // by this driver; what is imported is not counted
  std::map<uint64_t, int64_t> own_allocations_;
  std::map<std::byte*, std::vector<std::byte>> host_memory_;
  std::map<uint64_t, std::shared_ptr<StreamState>> streams_;
  std::map<uint64_t, std::shared_ptr<EventState>> events_;
  std::map<uint64_t, std::vector<Op>> graphs_;
};

}  // namespace swiftcache::engine::backend::cuda
