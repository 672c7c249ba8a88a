// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/native/cublas_lt.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/native/cuda_status.h"

namespace swiftcache::engine::backend::cuda {
namespace {

absl::Status LtStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": cuBLASLt's error ", static_cast<int>(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(message);
  if (status == CUBLAS_STATUS_EXECUTION_FAILED) return absl::DataLossError(message);
  if (status == CUBLAS_STATUS_ARCH_MISMATCH) return absl::FailedPreconditionError(message);
  return absl::InternalError(message);
}

cudaDataType_t TypeOf(Number number) { return number == Number::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

}  // namespace

// The functions that are used, by their names in the library.
struct CublasLt::Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;

  absl::Status Load() {
    void* library = nullptr;
    std::string why;
    // That of the CUDA this was built with first: another one may want another driver.
    const int built = CUDART_VERSION / 1000;
    for (const std::string& name : {absl::StrCat("libcublasLt.so.", built), absl::StrCat("libcublasLt.so.", 25 - built),
                                    std::string("libcublasLt.so")}) {
      library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) break;
      why = dlerror();
    }
    if (library == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("cuBLASLt is not to be found (", why,
                       "): install CUDA's libraries (12.4 or later), or put their folder into LD_LIBRARY_PATH"));
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    const bool all =
        find(create, "cublasLtCreate") && find(destroy, "cublasLtDestroy") && find(matmul, "cublasLtMatmul") &&
        find(desc_create, "cublasLtMatmulDescCreate") && find(desc_destroy, "cublasLtMatmulDescDestroy") &&
        find(desc_set, "cublasLtMatmulDescSetAttribute") && find(layout_create, "cublasLtMatrixLayoutCreate") &&
        find(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
        find(preference_create, "cublasLtMatmulPreferenceCreate") &&
        find(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
        find(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
        find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    if (!all)
      return absl::FailedPreconditionError("cuBLASLt lacks functions that it has had since CUDA 12: reinstall it");
    return absl::OkStatus();
  }
};

// What cuBLASLt keeps of one shape. In its columns-first terms: out^T [outputs][rows] = weight * in^T.
struct CublasLt::Plan {
  explicit Plan(const Functions* functions) : functions(functions) {}
  ~Plan() {
    if (desc != nullptr) functions->desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {weight, in, out}) {
      if (layout != nullptr) functions->layout_destroy(layout);
    }
  }
  const Functions* const functions;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, in = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Load(Driver& driver) {
  auto products = std::unique_ptr<CublasLt>(new CublasLt());
  products->functions_ = std::make_unique<Functions>();
  RETURN_IF_ERROR(products->functions_->Load());
  RETURN_IF_ERROR(LtStatus(products->functions_->create(&products->handle_), "creating a handle of cuBLASLt"));
  ASSIGN_OR_RETURN(products->workspace_, DeviceBytes::Allocate(driver, kWorkspaceBytes));
  return products;
}

CublasLt::~CublasLt() {
  plans_.clear();
  if (handle_ != nullptr) (void)functions_->destroy(handle_);
}

absl::StatusOr<const CublasLt::Plan*> CublasLt::PlanOf(const ProductOp& op) {
  const Shape shape = {op.rows, op.outputs, op.cols, op.out_cols, op.number, op.out_number, op.add, op.bias != nullptr};
  if (const auto known = plans_.find(shape); known != plans_.end()) return known->second.get();
  const Functions& lt = *functions_;
  auto plan = std::make_unique<Plan>(&lt);
  const std::string what =
      absl::StrCat("product of [", op.rows, "][", op.cols, "] and [", op.outputs, "][", op.cols, "]");
  RETURN_IF_ERROR(LtStatus(lt.desc_create(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), what));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  RETURN_IF_ERROR(
      LtStatus(lt.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)), what));
  if (op.bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = CUDA_R_32F;
    RETURN_IF_ERROR(
        LtStatus(lt.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)), what));
    RETURN_IF_ERROR(LtStatus(lt.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type)), what));
    // Which bias is no matter to the choice; that there is one, and where it is aligned, is.
    RETURN_IF_ERROR(
        LtStatus(lt.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &op.bias, sizeof(op.bias)), what));
  }
  const auto cols = static_cast<uint64_t>(op.cols), outputs = static_cast<uint64_t>(op.outputs),
             rows = static_cast<uint64_t>(op.rows);
  RETURN_IF_ERROR(LtStatus(lt.layout_create(&plan->weight, TypeOf(op.number), cols, outputs, op.cols), what));
  RETURN_IF_ERROR(LtStatus(lt.layout_create(&plan->in, TypeOf(op.number), cols, rows, op.cols), what));
  RETURN_IF_ERROR(LtStatus(lt.layout_create(&plan->out, TypeOf(op.out_number), outputs, rows, op.out_cols), what));
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(LtStatus(lt.preference_create(&preference), what));
  const auto workspace = static_cast<size_t>(kWorkspaceBytes);
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  cublasStatus_t status =
      lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
  if (status == CUBLAS_STATUS_SUCCESS) {
    status =
        lt.heuristic(handle_, plan->desc, plan->weight, plan->in, plan->out, plan->out, preference, 1, &best, &found);
  }
  (void)lt.preference_destroy(preference);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) RETURN_IF_ERROR(LtStatus(status, what));
  if (found == 0 || best.state != CUBLAS_STATUS_SUCCESS)
    return absl::FailedPreconditionError(absl::StrCat(what, ": cuBLASLt has no algorithm for it"));
  plan->algorithm = best.algo;
  return (plans_[shape] = std::move(plan)).get();
}

absl::Status CublasLt::Multiply(Stream stream, const ProductOp& op) {
  ASSIGN_OR_RETURN(const Plan* plan, PlanOf(op));
  if (op.bias != nullptr) {
    RETURN_IF_ERROR(
        LtStatus(functions_->desc_set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &op.bias, sizeof(op.bias)),
                 "the bias of a product"));
  }
  const float one = 1, factor = op.add ? 1 : 0;
  return LtStatus(functions_->matmul(handle_, plan->desc, &one, op.weight, plan->weight, op.in, plan->in, &factor,
                                     op.out, plan->out, op.out, plan->out, &plan->algorithm, workspace_.as<void>(),
                                     static_cast<size_t>(kWorkspaceBytes), reinterpret_cast<cudaStream_t>(stream)),
                  "a product");
}

}  // namespace swiftcache::engine::backend::cuda
