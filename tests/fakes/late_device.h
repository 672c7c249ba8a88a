// SPDX-License-Identifier: Apache-2.0
// A CPU that computes late, at addresses that are none of the host's: to who stands above it, a GPU.
//
//   LateQueue queue({.pace = LateQueue::Pace::kThread, .seed = 7});
//   LateDevice device({.threads = 1}, &queue);
//   auto model = CreateModel(config, weights, device, options);
//   auto transport = ShmTransport::Create({..., .space = LateDevice::Space()}, LateDevice::ArenaOf(*kv), clock, events);
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/backend/cpu/cpu_device.h"
#include "tests/fakes/late_backend.h"
#include "tests/fakes/late_kv_memory.h"
#include "tests/fakes/late_queue.h"

namespace swiftcache {

/// Thread-safety, errors: Device's. Ownership: borrows the queue.
class LateDevice final : public engine::backend::Device {
 public:
  LateDevice(engine::backend::cpu::CpuDeviceOptions options, LateQueue* queue)
      : cpu_((options.space = Space(), options)), queue_(queue) {}

  static engine::backend::AddressSpace Space() { return engine::backend::AddressSpace(LateKvMemory::kTurnedBits); }
  /// REQUIRES: a LateDevice made it.
  static engine::memory::Arena& ArenaOf(engine::backend::KvMemory& memory) {
    return static_cast<LateKvMemory&>(memory).arena();
  }

  std::string name() const override { return "late " + cpu_.name(); }
  std::optional<engine::backend::DeviceMemory> memory() const override { return cpu_.memory(); }
  absl::StatusOr<std::unique_ptr<engine::backend::Backend>> CreateBackend(
      const engine::backend::BackendOptions& options) override {
    auto backend = cpu_.CreateBackend(options);
    if (!backend.ok()) return backend.status();
    auto late = std::make_unique<LateBackend>(*std::move(backend), queue_);
    backend_ = late.get();
    return late;
  }
  /// The last one made. REQUIRES: it is there.
  LateBackend& backend() { return *backend_; }
  absl::StatusOr<std::unique_ptr<engine::backend::KvMemory>> CreateKvMemory(
      const engine::backend::KvMemoryOptions& options) override {
    auto memory = cpu_.CreateKvMemory(options);
    if (!memory.ok()) return memory.status();
    return std::make_unique<LateKvMemory>(*std::move(memory), queue_);
  }

 private:
  engine::backend::cpu::CpuDevice cpu_;
  LateQueue* const queue_;
  LateBackend* backend_ = nullptr;
};

}  // namespace swiftcache
