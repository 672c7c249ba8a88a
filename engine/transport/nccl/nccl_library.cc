// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {
namespace {

// ncclResult_t.
constexpr int kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6,
              kInProgress = 7, kTimeout = 8;
constexpr int kInt8 = 0;  // ncclDataType_t
constexpr char kRemedy[] =
    "install libnccl2 2.18 or later (apt, or `pip install nvidia-nccl-cu12` and its folder in LD_LIBRARY_PATH), or "
    "choose another --transport";

std::string VersionName(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusCode CodeOf(int result) {
  switch (result) {
    case kSystemError:
    case kRemoteError:
    case kTimeout:
      return absl::StatusCode::kUnavailable;
    case kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case kInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

template <typename Function>
bool Find(const std::function<void*(const char*)>& find, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(find(name));
  if (function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  return function != nullptr;
}

void* PointerOf(NcclComm comm) { return reinterpret_cast<void*>(static_cast<uint64_t>(comm)); }

}  // namespace

absl::StatusOr<std::unique_ptr<NcclLibrary>> NcclLibrary::Load(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::UnavailableError(absl::StrCat("NCCL cannot be loaded (", why == nullptr ? name : why, "): ", kRemedy));
  }
  return Over([library](const char* function) { return dlsym(library, function); });
}

// The version first: what is too old lacks functions, too.
absl::StatusOr<std::unique_ptr<NcclLibrary>> NcclLibrary::Over(const std::function<void*(const char*)>& find) {
  NcclFunctions nccl;
  std::string missing;
  int version = 0;
  if (Find(find, "ncclGetVersion", nccl.get_version, missing) && nccl.get_version(&version) == kSuccess &&
      version < kOldest) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL's version code is ", version, "; ", kOldest, " is the oldest that serves: ", kRemedy));
  }
  Find(find, "ncclGetUniqueId", nccl.get_unique_id, missing);
  Find(find, "ncclCommInitRankConfig", nccl.comm_init_rank_config, missing);
  Find(find, "ncclCommGetAsyncError", nccl.comm_get_async_error, missing);
  Find(find, "ncclCommAbort", nccl.comm_abort, missing);
  Find(find, "ncclGroupStart", nccl.group_start, missing);
  Find(find, "ncclGroupEnd", nccl.group_end, missing);
  Find(find, "ncclSend", nccl.send, missing);
  Find(find, "ncclRecv", nccl.recv, missing);
  Find(find, "ncclGetErrorString", nccl.get_error_string, missing);
  Find(find, "ncclGetLastError", nccl.get_last_error, missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("this NCCL lacks ", missing, ": ", kRemedy));
  }
  return std::unique_ptr<NcclLibrary>(new NcclLibrary(nccl, version));
}

absl::Status NcclLibrary::Check(const char* call, int result, void* comm) const {
  if (result == kSuccess || result == kInProgress) return absl::OkStatus();
  const char* const last = nccl_.get_last_error(comm);
  std::string text =
      absl::StrCat(call, ": ", nccl_.get_error_string(result), " (", result, "; NCCL ", VersionName(version_),
                   last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last, ")");
  if (result == kInvalidUsage) {
    absl::StrAppend(&text, "; where both engines are on one GPU, NCCL ", VersionName(kOldestForOneGpu),
                    " or later and NCCL_MULTI_RANK_GPU_ENABLE=1 are wanted at both: an older one refuses duplicates");
  }
  return absl::Status(CodeOf(result), text);
}

absl::StatusOr<NcclUniqueId> NcclLibrary::CreateUniqueId() {
  NcclUniqueId id = {};
  RETURN_IF_ERROR(Check("ncclGetUniqueId", nccl_.get_unique_id(&id), nullptr));
  return id;
}

// A communicator that failed at once may be there all the same, to be aborted.
absl::StatusOr<NcclComm> NcclLibrary::Init(const NcclUniqueId& id, int rank) {
  NcclConfig config;
  void* comm = nullptr;
  const absl::Status begun =
      Check("ncclCommInitRankConfig", nccl_.comm_init_rank_config(&comm, 2, id, rank, &config), nullptr);
  if (begun.ok()) return NcclComm{reinterpret_cast<uint64_t>(comm)};
  if (comm != nullptr) (void)nccl_.comm_abort(comm);
  return begun;
}

absl::StatusOr<bool> NcclLibrary::Settled(NcclComm comm) {
  int state = kSuccess;
  RETURN_IF_ERROR(Check("ncclCommGetAsyncError", nccl_.comm_get_async_error(PointerOf(comm), &state), PointerOf(comm)));
  RETURN_IF_ERROR(Check("a call of NCCL that goes on in the background", state, PointerOf(comm)));
  return state == kSuccess;
}

// A group that was begun is ended, whatever happens in it: this thread's next one would be a part of it.
absl::Status NcclLibrary::Transfer(NcclComm comm, NcclDirection direction, int peer, std::span<const NcclRun> runs,
                                   backend::cuda::Stream stream) {
  void* const where = PointerOf(comm);
  void* const on = reinterpret_cast<void*>(static_cast<uint64_t>(stream));
  RETURN_IF_ERROR(Check("ncclGroupStart", nccl_.group_start(), where));
  absl::Status given;
  for (const NcclRun& run : runs) {
    void* const memory = reinterpret_cast<void*>(run.address);
    given = direction == NcclDirection::kSend
                ? Check("ncclSend", nccl_.send(memory, run.bytes, kInt8, peer, where, on), where)
                : Check("ncclRecv", nccl_.recv(memory, run.bytes, kInt8, peer, where, on), where);
    if (!given.ok()) break;
  }
  const absl::Status ended = Check("ncclGroupEnd", nccl_.group_end(), where);
  return given.ok() ? ended : given;
}

void NcclLibrary::Abort(NcclComm comm) {
  const absl::Status aborted = Check("ncclCommAbort", nccl_.comm_abort(PointerOf(comm)), nullptr);
  LOG_IF(WARNING, !aborted.ok()) << aborted.message();
}

}  // namespace swiftcache::engine::transport::nccl
