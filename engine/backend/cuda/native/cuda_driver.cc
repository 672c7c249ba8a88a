// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/native/cuda_driver.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/native/cuda_status.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr int kDevice = 0;                      // of those that CUDA_VISIBLE_DEVICES leaves
constexpr int kOldestMajor = 8;                 // sm_80: bf16 in tensor cores
constexpr int64_t kDeclaredBlockMemory = 1024;  // of a kernel that asks for more: thread_block.cuh's reductions
constexpr int kDriverFunctions = 12'040;        // of the CUDA whose functions are looked up

// The runtime that is linked in wants a driver of its own CUDA's major version, whatever functions are used.
std::string WantedDriver() {
  return CUDART_VERSION < 13'000
             ? "CUDA 12.4 or later"
             : absl::StrCat("CUDA ", CUDART_VERSION / 1000, ".0 or later, with which this was built");
}

// The driver's functions act in the thread's context, and a thread has none until the runtime gives it one: sockets'
// and coordinators' threads come here first to import and to map.
void BindThread() {
  thread_local const cudaError_t bound = cudaSetDevice(kDevice);
  (void)bound;  // where there is no context the call that follows says so
}

// The driver's functions that the runtime has none for, as CUDA 12.4 declares them.
struct DriverFunctions {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_addresses = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuDeviceGetUuid_v2) uuid = nullptr;

  // By the driver's own table of functions: the runtime has a door to it only from CUDA 12.5 on.
  absl::Status Load() {
    using GetAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto get_address =
        library == nullptr ? nullptr : reinterpret_cast<GetAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (get_address == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("the GPU's driver (libcuda.so.1) is missing or too old: install one for ", WantedDriver()));
    }
    const auto find = [&](auto& function, const char* name) {
      void* found = nullptr;
      CUdriverProcAddressQueryResult result = {};
      const CUresult error = get_address(name, &found, kDriverFunctions, 0, &result);
      if (error != CUDA_SUCCESS || found == nullptr) {
        return absl::UnavailableError(
            absl::StrCat("the GPU's driver has no ", name, ": install one for ", WantedDriver()));
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(find(reserve, "cuMemAddressReserve"));
    RETURN_IF_ERROR(find(free_addresses, "cuMemAddressFree"));
    RETURN_IF_ERROR(find(create, "cuMemCreate"));
    RETURN_IF_ERROR(find(release, "cuMemRelease"));
    RETURN_IF_ERROR(find(map, "cuMemMap"));
    RETURN_IF_ERROR(find(unmap, "cuMemUnmap"));
    RETURN_IF_ERROR(find(set_access, "cuMemSetAccess"));
    RETURN_IF_ERROR(find(export_handle, "cuMemExportToShareableHandle"));
    RETURN_IF_ERROR(find(import_handle, "cuMemImportFromShareableHandle"));
    RETURN_IF_ERROR(find(granularity, "cuMemGetAllocationGranularity"));
    RETURN_IF_ERROR(find(attribute, "cuDeviceGetAttribute"));
    return find(uuid, "cuDeviceGetUuid");
  }
};

cudaStream_t Of(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaGraphExec_t Of(Graph graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }
cudaEvent_t Of(Event event) { return reinterpret_cast<cudaEvent_t>(event); }
CUmemGenericAllocationHandle Of(Allocation allocation) { return static_cast<CUmemGenericAllocationHandle>(allocation); }
void* At(uint64_t address) { return reinterpret_cast<void*>(address); }
CUmemLocation ThisDevice() { return {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = kDevice}; }

class CudaDriver final : public Driver {
 public:
  absl::Status Open();

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<DeviceMemory> memory() const override {
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
    return DeviceMemory{.total_bytes = static_cast<int64_t>(total), .free_bytes = static_cast<int64_t>(free)};
  }

  int64_t allocated_bytes() const override {
    absl::MutexLock lock(&mutex_);
    return allocated_bytes_;
  }

  absl::StatusOr<uint64_t> ReserveAddresses(int64_t bytes) override {
    BindThread();
    CUdeviceptr address = 0;
    RETURN_IF_ERROR(CudaStatus(driver_.reserve(&address, static_cast<size_t>(bytes), 0, 0, 0),
                               absl::StrCat("reserving addresses for ", bytes, " bytes")));
    return static_cast<uint64_t>(address);
  }
  absl::Status FreeAddresses(uint64_t address, int64_t bytes) override {
    BindThread();
    return CudaStatus(driver_.free_addresses(address, static_cast<size_t>(bytes)), "cuMemAddressFree");
  }
  absl::StatusOr<Allocation> Allocate(int64_t bytes) override {
    BindThread();
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = Properties();
    RETURN_IF_ERROR(CudaStatus(driver_.create(&handle, static_cast<size_t>(bytes), &properties, 0),
                               absl::StrCat("allocating ", bytes, " bytes of the GPU")));
    absl::MutexLock lock(&mutex_);
    allocations_[handle] = bytes;
    allocated_bytes_ += bytes;
    return static_cast<Allocation>(handle);
  }
  // Counted before the driver can give the same handle to another thread.
  absl::Status Release(Allocation allocation) override {
    BindThread();
    Forget(Of(allocation));
    return CudaStatus(driver_.release(Of(allocation)), "cuMemRelease");
  }
  absl::StatusOr<int> Export(Allocation allocation) override {
    BindThread();
    int fd = -1;
    RETURN_IF_ERROR(CudaStatus(driver_.export_handle(&fd, Of(allocation), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                               "exporting memory"));
    return fd;
  }
  absl::StatusOr<Allocation> Import(int fd) override {
    BindThread();
    CUmemGenericAllocationHandle handle = 0;
    RETURN_IF_ERROR(CudaStatus(
        driver_.import_handle(&handle, At(static_cast<uint64_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "importing memory"));
    return static_cast<Allocation>(handle);
  }
  absl::Status Map(uint64_t address, int64_t bytes, Allocation allocation, Access access) override {
    BindThread();
    const auto size = static_cast<size_t>(bytes);
    RETURN_IF_ERROR(
        CudaStatus(driver_.map(address, size, 0, Of(allocation), 0), absl::StrCat("mapping ", bytes, " bytes")));
    const CUmemAccessDesc description = {
        .location = ThisDevice(),
        .flags = access == Access::kRead ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const absl::Status status =
        CudaStatus(driver_.set_access(address, size, &description, 1), absl::StrCat("access to ", bytes, " bytes"));
    if (!status.ok()) (void)driver_.unmap(address, size);
    return status;
  }
  absl::Status Unmap(uint64_t address, int64_t bytes) override {
    BindThread();
    return CudaStatus(driver_.unmap(address, static_cast<size_t>(bytes)), "cuMemUnmap");
  }

  absl::StatusOr<std::byte*> AllocateHost(int64_t bytes) override {
    void* memory = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocMapped),
                               absl::StrCat("pinning ", bytes, " bytes of the host")));
    return static_cast<std::byte*>(memory);
  }
  absl::Status FreeHost(std::byte* memory) override { return CudaStatus(cudaFreeHost(memory), "cudaFreeHost"); }

  absl::StatusOr<Stream> CreateStream() override {
    cudaStream_t stream = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    return static_cast<Stream>(reinterpret_cast<uint64_t>(stream));
  }
  void DestroyStream(Stream stream) override {
    (void)cudaStreamSynchronize(Of(stream));
    (void)cudaStreamDestroy(Of(stream));
  }
  void Finish(Stream stream) override { (void)cudaStreamSynchronize(Of(stream)); }
  absl::StatusOr<Event> CreateEvent() override {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
    return static_cast<Event>(reinterpret_cast<uint64_t>(event));
  }
  void DestroyEvent(Event event) override { (void)cudaEventDestroy(Of(event)); }
  absl::Status Record(Event event, Stream stream) override {
    return CudaStatus(cudaEventRecord(Of(event), Of(stream)), "cudaEventRecord");
  }
  absl::Status Wait(Stream stream, Event event) override {
    return CudaStatus(cudaStreamWaitEvent(Of(stream), Of(event), 0), "cudaStreamWaitEvent");
  }
  absl::StatusOr<bool> Passed(Event event) override {
    const cudaError_t error = cudaEventQuery(Of(event));
    if (error == cudaErrorNotReady) return false;
    RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
    return true;
  }
  absl::Status Synchronize(Event event) override {
    return CudaStatus(cudaEventSynchronize(Of(event)), "cudaEventSynchronize");
  }

  // Of this thread alone: others may allocate and import meanwhile.
  absl::Status BeginCapture(Stream stream) override {
    return CudaStatus(cudaStreamBeginCapture(Of(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  absl::StatusOr<Graph> EndCapture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(Of(stream), &graph), "cudaStreamEndCapture"));
    cudaGraphExec_t ready = nullptr;
    const absl::Status made = CudaStatus(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    (void)cudaGraphDestroy(graph);
    RETURN_IF_ERROR(made);
    return static_cast<Graph>(reinterpret_cast<uint64_t>(ready));
  }
  void DestroyGraph(Graph graph) override { (void)cudaGraphExecDestroy(Of(graph)); }
  absl::Status LaunchGraph(Stream stream, Graph graph) override {
    return CudaStatus(cudaGraphLaunch(Of(graph), Of(stream)), "cudaGraphLaunch");
  }

  absl::Status Copy(Stream stream, std::span<const DeviceCopy> copies) override {
    for (const DeviceCopy& copy : copies) {
      RETURN_IF_ERROR(CudaStatus(
          cudaMemcpyAsync(At(copy.to), At(copy.from), static_cast<size_t>(copy.bytes), cudaMemcpyDefault, Of(stream)),
          absl::StrCat("copying ", copy.bytes, " bytes")));
    }
    return absl::OkStatus();
  }
  // Long rows are given as stacks of short ones, which the driver moves faster: tests/gpu/RESULTS.md.
  absl::Status Copy2D(Stream stream, const DeviceCopy2D& copy) override {
    const size_t piece = copy.bytes > 32 << 10 ? 1024 : 2048;
    const bool whole_pieces = (copy.bytes | copy.to_stride | copy.from_stride) % piece == 0;
    const auto stacked = [&](uint64_t address, int64_t stride) {
      return make_cudaPitchedPtr(At(address), piece, piece, static_cast<size_t>(stride) / piece);
    };
    cudaMemcpy3DParms stacks = {};
    stacks.srcPtr = stacked(copy.from, copy.from_stride);
    stacks.dstPtr = stacked(copy.to, copy.to_stride);
    stacks.extent = {piece, static_cast<size_t>(copy.bytes) / piece, static_cast<size_t>(copy.rows)};
    stacks.kind = cudaMemcpyDefault;
    return CudaStatus(whole_pieces
                          ? cudaMemcpy3DAsync(&stacks, Of(stream))
                          : cudaMemcpy2DAsync(At(copy.to), static_cast<size_t>(copy.to_stride), At(copy.from),
                                              static_cast<size_t>(copy.from_stride), static_cast<size_t>(copy.bytes),
                                              static_cast<size_t>(copy.rows), cudaMemcpyDefault, Of(stream)),
                      absl::StrCat("copying ", copy.rows, " times ", copy.bytes, " bytes"));
  }
  absl::Status Zero(Stream stream, uint64_t address, int64_t bytes) override {
    return CudaStatus(cudaMemsetAsync(At(address), 0, static_cast<size_t>(bytes), Of(stream)),
                      absl::StrCat("zeroing ", bytes, " bytes"));
  }

 private:
  // Nothing, for what was imported.
  void Forget(CUmemGenericAllocationHandle handle) {
    absl::MutexLock lock(&mutex_);
    if (const auto it = allocations_.find(handle); it != allocations_.end()) {
      allocated_bytes_ -= it->second;
      allocations_.erase(it);
    }
  }
  CUmemAllocationProp Properties() const {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = ThisDevice();
    if (info_.exports) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
  }
  absl::StatusOr<bool> Has(CUdevice_attribute attribute) const {
    int value = 0;
    RETURN_IF_ERROR(CudaStatus(driver_.attribute(&value, attribute, kDevice), "cuDeviceGetAttribute"));
    return value != 0;
  }

  DriverFunctions driver_;
  DeviceInfo info_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<CUmemGenericAllocationHandle, int64_t> allocations_ ABSL_GUARDED_BY(mutex_);  // their bytes
  int64_t allocated_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status CudaDriver::Open() {
  // By default streams share eight queues, so that computing may stand behind a copy that waits for a slow peer. CUDA reads
  // it when it is used first.
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return absl::UnavailableError(absl::StrCat(
        "no GPU can be used (", error == cudaSuccess ? "none is visible" : cudaGetErrorString(error),
        "): install NVIDIA's driver for ", WantedDriver(),
        ", look at CUDA_VISIBLE_DEVICES (deploy/check-gpu.sh says what is missing), or use --backend=cpu"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(kDevice), "cudaSetDevice"));
  RETURN_IF_ERROR(driver_.Load());
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, kDevice), "cudaGetDeviceProperties"));
  info_.name = properties.name;
  CUuuid uuid = {};  // of a slice (MIG) its own, not its GPU's
  RETURN_IF_ERROR(CudaStatus(driver_.uuid(&uuid, kDevice), "cuDeviceGetUuid"));
  info_.uuid = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  info_.compute_major = properties.major;
  info_.compute_minor = properties.minor;
  info_.multiprocessors = properties.multiProcessorCount;
  // What a block can ask for beside what its kernel declares.
  info_.block_memory_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin) - kDeclaredBlockMemory;
  if (info_.compute_major < kOldestMajor) {
    return absl::FailedPreconditionError(absl::StrCat(info_.name, " is of sm_", info_.compute_major,
                                                      info_.compute_minor,
                                                      ", wanted sm_80 or later: use --backend=cpu"));
  }
  ASSIGN_OR_RETURN(const bool virtual_memory, Has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  if (!virtual_memory) {
    return absl::FailedPreconditionError(
        absl::StrCat(info_.name, " has no virtual memory management here: use --backend=cpu"));
  }
  ASSIGN_OR_RETURN(info_.exports, Has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  size_t granularity = 0;
  const CUmemAllocationProp memory = Properties();
  RETURN_IF_ERROR(CudaStatus(driver_.granularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                             "cuMemGetAllocationGranularity"));
  info_.granularity_bytes = static_cast<int64_t>(granularity);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> OpenDriver() {
  auto driver = std::make_unique<CudaDriver>();
  RETURN_IF_ERROR(driver->Open());
  return std::unique_ptr<Driver>(std::move(driver));
}

}  // namespace swiftcache::engine::backend::cuda
