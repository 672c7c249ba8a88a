// SPDX-License-Identifier: Apache-2.0
// CUDA's names for what tests/fakes/simt/simt.h emulates: as much of them as our kernels use.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>

#include "tests/fakes/simt/simt.h"

#define __device__
#define __global__
#define __shared__ static       // blocks run one after the other
#define __launch_bounds__(...)  // nobody checks them: more threads would not be launched by a GPU

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};
inline dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim, gridDim;  // of the thread that runs

// --- threads of a block or warp

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  swiftcache::simt::SyncThreads(file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  swiftcache::simt::MeetWith(mask, "__syncwarp", 0, [](auto&) {});
}

inline unsigned __activemask() { return swiftcache::simt::ActiveMask(); }

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  struct Lane {
    T value, result;
    unsigned distance;
  };
  return swiftcache::simt::MeetWith(
             mask, "__shfl_down_sync", Lane{value, value, distance},
             [](auto& lanes) {
               for (unsigned i = 0; i < lanes.size(); ++i) {
                 if (lanes[i] == nullptr || i + lanes[i]->distance >= lanes.size()) continue;
                 const Lane* const from = lanes[i + lanes[i]->distance];
                 if (from == nullptr) swiftcache::simt::Die("__shfl_down_sync: from a lane that is not in the mask");
                 lanes[i]->result = from->value;
               }
             })
      .result;
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned bits) {
  struct Lane {
    T value, result;
    unsigned bits;
  };
  return swiftcache::simt::MeetWith(mask, "__shfl_xor_sync", Lane{value, value, bits},
                                    [](auto& lanes) {
                                      for (unsigned i = 0; i < lanes.size(); ++i) {
                                        if (lanes[i] == nullptr) continue;
                                        const Lane* const from = lanes[i ^ lanes[i]->bits];
                                        if (from == nullptr)
                                          swiftcache::simt::Die("__shfl_xor_sync: from a lane that is not in the mask");
                                        lanes[i]->result = from->value;
                                      }
                                    })
      .result;
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  struct Lane {
    T value;
    unsigned result;
  };
  return swiftcache::simt::MeetWith(mask, "__match_any_sync", Lane{value, 0},
                                    [](auto& lanes) {
                                      for (Lane* const lane : lanes) {
                                        for (unsigned i = 0; lane != nullptr && i < lanes.size(); ++i) {
                                          if (lanes[i] != nullptr && lanes[i]->value == lane->value)
                                            lane->result |= 1u << i;
                                        }
                                      }
                                    })
      .result;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return swiftcache::simt::MeetWith(mask, "__reduce_add_sync", value, [](auto& lanes) {
    unsigned sum = 0;
    for (const unsigned* const lane : lanes) sum += lane == nullptr ? 0 : *lane;
    for (unsigned* const lane : lanes) {
      if (lane != nullptr) *lane = sum;
    }
  });
}

inline int __any_sync(unsigned mask, int value) {
  return swiftcache::simt::MeetWith(mask, "__any_sync", value, [](auto& lanes) {
    int any = 0;
    for (const int* const lane : lanes) any |= lane != nullptr && *lane != 0 ? 1 : 0;
    for (int* const lane : lanes) {
      if (lane != nullptr) *lane = any;
    }
  });
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <class T>
T atomicAdd(T* sum, std::type_identity_t<T> value) {
  static_assert(std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>);
  return std::exchange(*sum, *sum + value);
}

inline int atomicExch(int* kept, int value) { return std::exchange(*kept, value); }

// --- what launches

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaSharedCarveout { cudaSharedmemCarveoutMaxShared = 100 };

namespace swiftcache::simt {
inline constexpr int64_t kMemoryWithoutAsking = 48 << 10, kMostMemory = 227 << 10;
/// What a kernel asked for last, in bytes: the most that it may be launched with.
inline std::map<const void*, int64_t> asked_memory;
inline int64_t MostMemoryOf(const void* kernel) {
  const auto asked = asked_memory.find(kernel);
  return asked == asked_memory.end() ? kMemoryWithoutAsking : asked->second;
}
}  // namespace swiftcache::simt

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int bytes) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (bytes > swiftcache::simt::kMostMemory) return cudaErrorInvalidValue;
  swiftcache::simt::asked_memory[reinterpret_cast<const void*>(kernel)] = bytes;
  return cudaSuccess;
}
