// SPDX-License-Identifier: Apache-2.0
// What is asked of a GPU's driver: memory, streams, events, copies. No header of CUDA is needed to use it, so that all
// that stands upon it is tested against tests/fakes/fake_cuda_driver.h, which has no GPU.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, OpenDriver());      // native/cuda_driver.h
//   ASSIGN_OR_RETURN(const uint64_t address, driver->ReserveAddresses(bytes));
//   ASSIGN_OR_RETURN(const Allocation chunk, driver->Allocate(bytes));
//   RETURN_IF_ERROR(driver->Map(address, bytes, chunk, Access::kReadWrite));
//   RETURN_IF_ERROR(driver->Copy(stream, {{.to = address, .from = elsewhere, .bytes = bytes}}));
//   RETURN_IF_ERROR(driver->Record(event, stream));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cuda {

// Handles of the driver, as numbers. 0 is none of them.
enum class Allocation : uint64_t {};  // physical memory
enum class Stream : uint64_t {};
enum class Event : uint64_t {};
enum class Graph : uint64_t {};

enum class Access { kRead, kReadWrite };

/// The GPU that a driver was opened for.
struct DeviceInfo {
  std::string name;       // "NVIDIA H100 80GB HBM3"
  std::string uuid;       // its 16 bytes in hexadecimal: ordinals differ between processes, this does not
  int compute_major = 0;  // 9 of sm_90
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t block_memory_bytes = 0;  // that a block of threads can have
  int64_t granularity_bytes = 0;   // Allocate's and Map's sizes and addresses are multiples of it
  bool exports = false;            // allocations can be handed to other processes as file descriptors
};

/// One copy, on the device or between devices whose memory is mapped here.
struct DeviceCopy {
  uint64_t to = 0, from = 0;
  int64_t bytes = 0;
};

/// `rows` copies of `bytes`, `to_stride` and `from_stride` bytes apart: a layer's slices of adjacent blocks.
struct DeviceCopy2D {
  uint64_t to = 0, from = 0;
  int64_t to_stride = 0, from_stride = 0;
  int64_t bytes = 0, rows = 0;
};

/// One GPU of this process: the first that CUDA_VISIBLE_DEVICES leaves. Copies and memsets are asynchronous, in the
/// order of their stream.
/// Thread-safety: safe, from any thread. Ownership: what is made lives until it is destroyed by the call named so, and
/// not longer than the driver; file descriptors are the caller's. Errors: RESOURCE_EXHAUSTED (out of memory),
/// FAILED_PRECONDITION (not on this GPU, or not from this process), DATA_LOSS (the device is lost: ECC, fallen off the
/// bus, a fault of a kernel, an MPS server that is gone; every later call says so too), INTERNAL (else); each names the
/// call, the driver's name of the error and the sizes. What gives something back (Release, Unmap, FreeAddresses, FreeHost, UnregisterHost) has done
/// so also where it returns an error: a driver tells earlier faults there. Units: bytes.
class Driver {
 public:
  virtual ~Driver() = default;

  virtual const DeviceInfo& info() const = 0;
  /// As the driver says it, whatever this process is allowed of it (memory_limit.h).
  virtual absl::StatusOr<DeviceMemory> memory() const = 0;
  /// What this process has had of Allocate and not given to Release.
  virtual int64_t allocated_bytes() const = 0;

  // Memory. Addresses and physical memory are apart: what lies at an address may be taken away, or handed out.
  virtual absl::StatusOr<uint64_t> ReserveAddresses(int64_t bytes) = 0;
  /// REQUIRES: nothing is mapped there.
  virtual absl::Status FreeAddresses(uint64_t address, int64_t bytes) = 0;
  virtual absl::StatusOr<Allocation> Allocate(int64_t bytes) = 0;
  /// The memory lives on while it is mapped somewhere, here or in another process.
  virtual absl::Status Release(Allocation allocation) = 0;
  /// A file descriptor that Import takes, in any process of this user. Whoever imports it chooses its own Access: the
  /// driver does not enforce the exporter's.
  virtual absl::StatusOr<int> Export(Allocation allocation) = 0;
  /// Of memory of this GPU or of a peer. The descriptor may be closed afterwards.
  virtual absl::StatusOr<Allocation> Import(int fd) = 0;
  /// Maps the whole of an allocation for kernels and copies of this GPU. An error: it has another size (a peer may say
  /// what it likes), or is of a GPU that this one does not reach.
  virtual absl::Status Map(uint64_t address, int64_t bytes, Allocation allocation, Access access) = 0;
  /// REQUIRES: no work that reads or writes there is under way.
  virtual absl::Status Unmap(uint64_t address, int64_t bytes) = 0;

  /// Pinned memory of the host; kernels and copies reach it at the same number.
  virtual absl::StatusOr<std::byte*> AllocateHost(int64_t bytes) = 0;
  virtual absl::Status FreeHost(std::byte* memory) = 0;

  // Order of work.
  virtual absl::StatusOr<Stream> CreateStream() = 0;
  /// When it returns nothing of the stream's work is under way any more: it waits, as the driver's own call does not.
  virtual void DestroyStream(Stream stream) = 0;
  /// Waits until nothing that the stream was given is under way, whatever the driver says of it: before memory is freed.
  virtual void Finish(Stream stream) = 0;
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual void DestroyEvent(Event event) = 0;
  /// The event passes when the stream has done what it was given before.
  virtual absl::Status Record(Event event, Stream stream) = 0;
  /// What the stream is given from now on begins when the event has passed.
  virtual absl::Status Wait(Stream stream, Event event) = 0;
  /// Whether the event's last Record has passed; true where it was never recorded.
  virtual absl::StatusOr<bool> Passed(Event event) = 0;
  virtual absl::Status Synchronize(Event event) = 0;

  // Work that is given again and again, by one call.
  /// Until EndCapture kernels that the stream is given are not run but remembered. REQUIRES: the same thread ends it, and
  /// gives the stream nothing but kernels until then.
  virtual absl::Status BeginCapture(Stream stream) = 0;
  /// Ends it also where it returns an error.
  virtual absl::StatusOr<Graph> EndCapture(Stream stream) = 0;
  /// REQUIRES: it is not under way.
  virtual void DestroyGraph(Graph graph) = 0;
  /// The kernels in their order, as if they were given now.
  virtual absl::Status LaunchGraph(Stream stream, Graph graph) = 0;

  // Copies without a kernel of ours: by the copy engines to and from other GPUs and the host; between addresses of one GPU
  // the driver may choose its multiprocessors.
  virtual absl::Status Copy(Stream stream, std::span<const DeviceCopy> copies) = 0;
  virtual absl::Status Copy2D(Stream stream, const DeviceCopy2D& copy) = 0;
  virtual absl::Status Zero(Stream stream, uint64_t address, int64_t bytes) = 0;
};

}  // namespace swiftcache::engine::backend::cuda
