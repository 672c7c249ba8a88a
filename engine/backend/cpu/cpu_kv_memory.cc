// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/cpu_kv_memory.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "glog/logging.h"

namespace swiftcache::engine::backend::cpu {
namespace {

constexpr int64_t kLeastMeasured = 256 << 10;
constexpr int64_t kSmoothing = 4;

// The caches keep what the next step reads; and memory is written without being read first, twice as fast.
void ZeroPastCaches(std::byte* begin, int64_t bytes) {
  constexpr int64_t kLane = sizeof(__m128i);  // of any x86-64
  std::byte* const end = begin + bytes;
  const auto past_border = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kLane);
  const int64_t head = std::min(bytes, (kLane - past_border) % kLane);
  std::memset(begin, 0, head);
  for (begin += head; end - begin >= kLane; begin += kLane) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(begin), _mm_setzero_si128());
  }
  _mm_sfence();
  std::memset(begin, 0, end - begin);
}

}  // namespace

std::byte* CpuKvMemory::Bytes(DeviceAddress begin, int64_t bytes) const {
  const int64_t offset = begin - base();
  CHECK(offset >= 0 && bytes >= 0 && offset <= this->bytes() - bytes)
      << bytes << " bytes at " << offset << " of the arena";
  return space_.Host(begin);
}

Fence CpuKvMemory::Zero(std::span<const ByteRange> ranges) {
  const absl::Time begin = clock_.Now();
  int64_t bytes = 0;
  for (const ByteRange& range : ranges) {
    ZeroPastCaches(Bytes(range.begin, range.bytes), range.bytes);
    bytes += range.bytes;
  }
  Measure(bytes, clock_.Now() - begin);
  return {};
}

void CpuKvMemory::Measure(int64_t bytes, absl::Duration took) {
  if (bytes < kLeastMeasured || took <= absl::ZeroDuration()) return;
  const auto measured = static_cast<int64_t>(static_cast<double>(bytes) / absl::ToDoubleMilliseconds(took));
  bytes_in_a_millisecond_ += (measured - bytes_in_a_millisecond_) / kSmoothing;
}

Fence CpuKvMemory::Copy(std::span<const ByteMove> moves) {
  for (const ByteMove& move : moves) std::memcpy(Bytes(move.to, move.bytes), Bytes(move.from, move.bytes), move.bytes);
  return {};
}

}  // namespace swiftcache::engine::backend::cpu
