// SPDX-License-Identifier: Apache-2.0
// The few calls of NCCL that are used: communicators of two, point to point. No header of NCCL is needed to use it, so
// that all that stands upon it is tested against tests/fakes/fake_nccl.h, which has neither NCCL nor a GPU.
//
//   ASSIGN_OR_RETURN(const NcclUniqueId id, nccl.CreateUniqueId());              // and tells it to the other rank
//   ASSIGN_OR_RETURN(const NcclComm comm, nccl.Init(id, 0));
//   ... until nccl.Settled(comm) says true:
//   RETURN_IF_ERROR(nccl.Transfer(comm, NcclDirection::kSend, 1, runs, stream));
//   ... until nccl.Settled(comm) says true: the transfer is in the stream
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"

namespace swiftcache::engine::transport::nccl {

/// How the ranks of a communicator find each other: whoever knows it can join. Bytes, as NCCL made them.
using NcclUniqueId = std::array<std::byte, 128>;

/// NCCL's handle, as a number. 0 is none.
enum class NcclComm : uint64_t {};

enum class NcclDirection { kSend, kReceive };

/// Contiguous memory of the device.
struct NcclRun {
  uint64_t address = 0;
  int64_t bytes = 0;
};

/// Communicators have two ranks and do not block: a call begins, Settled says when it is over, and until then nothing
/// but Settled and Abort may be called for that communicator.
/// Thread-safety: safe; each communicator's calls by one thread. Ownership: a communicator lives until Abort.
/// Errors: UNAVAILABLE (the other rank is gone, or the network), FAILED_PRECONDITION (NCCL refuses what is asked of it),
/// INVALID_ARGUMENT, INTERNAL; each names the call and what NCCL says. After an error only Abort may be called for the
/// communicator. Units: bytes.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  /// 23004 of 2.30.4.
  virtual int version() const = 0;
  virtual absl::StatusOr<NcclUniqueId> CreateUniqueId() = 0;
  /// Begins to join as `rank`, 0 or 1, on the calling thread's device.
  virtual absl::StatusOr<NcclComm> Init(const NcclUniqueId& id, int rank) = 0;
  /// Whether what was begun is over; an error that came up in the background.
  virtual absl::StatusOr<bool> Settled(NcclComm comm) = 0;
  /// One group of sends to the rank `peer`, or of receives from it, which matches the other's group with the same sizes
  /// in the same order. Once settled, it is work of the stream.
  virtual absl::Status Transfer(NcclComm comm, NcclDirection direction, int peer, std::span<const NcclRun> runs,
                                backend::cuda::Stream stream) = 0;
  /// Ends the communicator now: work of streams that waits for the other rank ends, with any bytes. The one way to end
  /// it: the orderly one (ncclCommFinalize) waits for the other rank.
  virtual void Abort(NcclComm comm) = 0;
};

}  // namespace swiftcache::engine::transport::nccl
