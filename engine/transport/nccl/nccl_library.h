// SPDX-License-Identifier: Apache-2.0
// NCCL as it is installed: found when the engine starts, so that a build needs neither its header nor its library.
//
//   ASSIGN_OR_RETURN(const std::unique_ptr<NcclLibrary> nccl, NcclLibrary::Load());
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/transport/nccl/nccl_api.h"

namespace swiftcache::engine::transport::nccl {

// What is used of nccl.h, written down by hand: NCCL keeps to it from 2.18 on. It sees by `size` and `version` that
// whoever asks knows no later fields.
struct NcclConfig {
  /// A donor's kernel waits on its multiprocessors for what the borrower asks for next, from the first layer of a step to
  /// the last, and each of its blocks of threads takes room there. Left to itself NCCL has one for each way that it finds
  /// between the two. Few, then, and not one, since each moves only so many bytes a second. Not measured yet.
  static constexpr int kMostCtas = 4;

  size_t size = sizeof(NcclConfig);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 21800;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kMostCtas;
  const char* net_name = nullptr;
  int split_share = kUndefined;

  static constexpr int kUndefined = INT32_MIN;  // NCCL_CONFIG_UNDEF_INT
};
static_assert(sizeof(NcclConfig) == 48 && offsetof(NcclConfig, blocking) == 16 &&
              offsetof(NcclConfig, max_ctas) == 28 && offsetof(NcclConfig, net_name) == 32 &&
              offsetof(NcclConfig, split_share) == 40);

struct NcclFunctions {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*comm_init_rank_config)(void** comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) = nullptr;
  int (*comm_get_async_error)(void* comm, int* error) = nullptr;
  int (*comm_abort)(void* comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* from, size_t count, int type, int peer, void* comm, void* stream) = nullptr;
  int (*recv)(void* to, size_t count, int type, int peer, void* comm, void* stream) = nullptr;
  const char* (*get_error_string)(int error) = nullptr;
  const char* (*get_last_error)(void* comm) = nullptr;
};

/// Thread-safety: safe. Ownership: keeps the library loaded for good: NCCL's threads may outlive every communicator.
/// Errors: Load: UNAVAILABLE (there is none), FAILED_PRECONDITION (it is older than kOldest, or lacks a function); each
/// says the remedy. Several ranks on one GPU want kOldestForOneGpu and NCCL_MULTI_RANK_GPU_ENABLE=1: where NCCL refuses
/// its usage, the error says so.
class NcclLibrary final : public NcclApi {
 public:
  static constexpr int kOldest = 21800;           // 2.18: the config above
  static constexpr int kOldestForOneGpu = 23000;  // 2.30
  static absl::StatusOr<std::unique_ptr<NcclLibrary>> Load(const std::string& name = "libnccl.so.2");
  /// Where `find` finds the functions, null where there is none of that name.
  static absl::StatusOr<std::unique_ptr<NcclLibrary>> Over(const std::function<void*(const char*)>& find);

  int version() const override { return version_; }
  absl::StatusOr<NcclUniqueId> CreateUniqueId() override;
  absl::StatusOr<NcclComm> Init(const NcclUniqueId& id, int rank) override;
  absl::StatusOr<bool> Settled(NcclComm comm) override;
  absl::Status Transfer(NcclComm comm, NcclDirection direction, int peer, std::span<const NcclRun> runs,
                        backend::cuda::Stream stream) override;
  void Abort(NcclComm comm) override;

 private:
  NcclLibrary(const NcclFunctions& functions, int version) : nccl_(functions), version_(version) {}
  absl::Status Check(const char* call, int result, void* comm) const;

  const NcclFunctions nccl_;
  const int version_;
};

}  // namespace swiftcache::engine::transport::nccl
