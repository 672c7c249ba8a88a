// SPDX-License-Identifier: Apache-2.0
// Creates the device that --backend names, and the transport that shares its KV memory with other engines. Only this
// file knows which devices and transports there are.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<engine::backend::Device> device, CreateDevice(flags));
//   const TransportOptions options{.name = name, .instance_id = id, .flags = &flags};
//   ASSIGN_OR_RETURN(auto transport, CreateTransport(options, kv, clock, events));
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "engine/backend/device.h"
#include "engine/backend/kv_memory.h"
#include "engine/transport/shm_transport.h"
#include "services/engine_flags.h"

namespace swiftcache::services {

/// FAILED_PRECONDITION: this build has no such backend; names the flag and the remedy.
absl::StatusOr<std::unique_ptr<engine::backend::Device>> CreateDevice(const EngineFlags& flags);

struct TransportOptions {
  std::string name, instance_id;
  const EngineFlags* flags;
};
/// REQUIRES: `memory` was made by CreateDevice's device, to be shared. Errors: those of ShmTransport::Create.
absl::StatusOr<std::unique_ptr<engine::transport::ShmTransport>> CreateTransport(
    const TransportOptions& options, engine::backend::KvMemory& memory, const Clock& clock,
    engine::transport::TransportEvents& events);

}  // namespace swiftcache::services
