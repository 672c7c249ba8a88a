# SPDX-License-Identifier: Apache-2.0
# The CUDA toolkit, for SWIFTCACHE_CUDA. Binaries want none of it where they run: its runtime is linked in, cuBLASLt and
# NCCL are loaded when a GPU is used.
if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)  # where the toolkit puts itself, out of PATH
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "SWIFTCACHE_CUDA is ON, and nvcc is not found: install the CUDA Toolkit (12.4 to 13.x), or see deploy/install-deps.sh --cuda")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # each target says which
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -O2")  # what launches kernels; presets name no build type, and ptxas optimises anyway
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # Debian 12's CMake does not know that nvcc can
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit 12.4 REQUIRED)
