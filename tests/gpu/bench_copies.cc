// SPDX-License-Identifier: Apache-2.0
// The bounds, copies as leases make them, and what it costs to show, to map and to exchange memory.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/backend/bf16.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/transport/cuda_ipc/cuda_mapping.h"
#include "tests/gpu/bench_tools.h"

namespace swiftcache::gpu_bench {

using namespace engine::backend::cuda;  // NOLINT: a benchmark of that room
using engine::transport::cuda_ipc::CudaMapping;

namespace {

// Numbers as weights and activations have: a GPU multiplies zeroes faster, since they draw less power.
void FillAtRandom(Driver& driver, Stream stream, const DeviceBytes& memory) {
  constexpr int64_t kBytes = 16 << 20;
  const PinnedBytes numbers = Take(PinnedBytes::Allocate(driver, kBytes));
  uint64_t state = 1;
  for (int64_t i = 0; i < kBytes / 2; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    numbers.as<engine::backend::Bf16>()[i] = engine::backend::ToBf16(static_cast<float>(state >> 40) * 0x1p-24f - 0.5f);
  }
  for (int64_t at = 0; at < memory.bytes(); at += kBytes) {
    const DeviceCopy copy = {.to = memory.address() + static_cast<uint64_t>(at),
                             .from = reinterpret_cast<uint64_t>(numbers.data()),
                             .bytes = std::min(kBytes, memory.bytes() - at)};
    Check(driver.Copy(stream, {&copy, 1}));
  }
  driver.Finish(stream);
}

}  // namespace

Bounds MeasureBounds(Driver& driver, Kernels& kernels, Stream stream, Rows& rows) {
  Stopwatch stopwatch(driver, stream);
  // The least of ten: a bound is the best that the GPU does, and it takes a while to come to its clock.
  const auto least = [&stopwatch](const std::function<void()>& submit) {
    double seconds = stopwatch.Time(submit);
    for (int i = 1; i < 10; ++i) seconds = std::min(seconds, stopwatch.Time(submit));
    return seconds;
  };
  constexpr int64_t n = 8192, bytes = 1ll << 30;
  const DeviceBytes a = Take(DeviceBytes::Allocate(driver, bytes)), b = Take(DeviceBytes::Allocate(driver, bytes));
  FillAtRandom(driver, stream, a);
  const ProductOp product = {.in = a.as<void>(),
                             .rows = n,
                             .weight = a.as<engine::backend::Bf16>() + n * n,
                             .outputs = n,
                             .cols = n,
                             .out = b.as<float>(),
                             .out_cols = n};
  Bounds bounds;
  bounds.flops = 2.0 * n * n * n / least([&] { Check(kernels.Multiply(stream, product)); });
  const DeviceCopy copy = {.to = b.address(), .from = a.address(), .bytes = bytes};
  bounds.bytes = 2.0 * bytes / least([&] { Check(driver.Copy(stream, {&copy, 1})); });
  rows.Add({.what = "bound: products of bf16, [8192][8192] each", .figure = bounds.flops * 1e-12, .unit = "TFLOP/s"});
  rows.Add({.what = "bound: a plain copy of 1 GiB, reads and writes", .figure = bounds.bytes * 1e-9, .unit = "GB/s"});
  constexpr int64_t outputs = bytes / 2 / n;
  const ProductOp reads = {.in = b.as<void>(),
                           .rows = 1,
                           .weight = a.as<void>(),
                           .outputs = outputs,
                           .cols = n,
                           .out = b.as<float>() + n,
                           .out_cols = outputs};
  const double read = bytes / stopwatch.Time([&] { Check(kernels.Multiply(stream, reads)); });
  rows.Add({.what = "reads of 1 GiB, by a product of one row",
            .figure = read * 1e-9,
            .unit = "GB/s",
            .share = read / bounds.bytes,
            .of = "the plain copy's"});
  return bounds;
}

// One layer's slices of 256 blocks, and the same bytes as one run. The source is mapped as a borrower maps a lease: from a
// descriptor, for reading.
void MeasureCopies(Driver& driver, Stream stream, Rows& rows) {
  Stopwatch stopwatch(driver, stream);
  for (const int64_t slice : {8ll << 10, 32ll << 10, 64ll << 10, 256ll << 10}) {
    constexpr int64_t layers = 36, blocks = 256;
    const auto arena = Take(
        CudaArena::Create({.bytes = slice * layers * blocks, .block_bytes = slice * layers, .shared = true}, driver));
    const auto lease = Take(CudaMapping::Reserve(driver, arena->mapped_bytes()));
    for (size_t i = 0; i < arena->chunks().size(); ++i) {
      const engine::memory::UniqueFd fd = Take(arena->Export(i));
      Check(lease->Add(Take(driver.Import(fd.get())), arena->chunks()[i].bytes, Access::kRead));
    }
    const DeviceBytes to = Take(DeviceBytes::Allocate(driver, slice * blocks));
    const DeviceCopy2D grid = {.to = to.address(),
                               .from = lease->base() + 3 * static_cast<uint64_t>(slice),
                               .to_stride = slice,
                               .from_stride = slice * layers,
                               .bytes = slice,
                               .rows = blocks};
    std::vector<DeviceCopy> single;
    for (int64_t i = 0; i < blocks; ++i) {
      single.push_back({.to = grid.to + i * slice, .from = grid.from + i * grid.from_stride, .bytes = slice});
    }
    const DeviceCopy whole = {.to = to.address(), .from = lease->base(), .bytes = slice * blocks};
    const double moved = 2.0 * static_cast<double>(slice * blocks);
    const double at_once = moved / stopwatch.Time([&] { Check(driver.Copy(stream, {&whole, 1})); });
    const std::string name = absl::StrCat("a layer of 256 leased blocks, slices of ", slice >> 10, " KiB");
    rows.Add({.what = name + ", layer-major: one run", .figure = at_once * 1e-9, .unit = "GB/s"});
    const double by_grid = moved / stopwatch.Time([&] { Check(driver.Copy2D(stream, grid)); });
    rows.Add({.what = name + ": one 2D copy",
              .figure = by_grid * 1e-9,
              .unit = "GB/s",
              .share = by_grid / at_once,
              .of = "one run",
              .at_least = 0.8});
    const double one_by_one = moved / stopwatch.Time([&] { Check(driver.Copy(stream, single)); });
    rows.Add({.what = name + ": one by one",
              .figure = one_by_one * 1e-9,
              .unit = "GB/s",
              .share = one_by_one / at_once,
              .of = "one run"});
  }
}

// Of 1 GiB in the arena's chunks: what a grant, a borrower's mapping and its end, and --remap_on_return would cost.
void MeasureMemory(Driver& driver, Rows& rows) {
  constexpr int64_t bytes = 1ll << 30;
  const auto seconds = [](const std::function<void()>& act) {
    const absl::Time begin = absl::Now();
    act();
    return absl::ToDoubleSeconds(absl::Now() - begin) * 1e3;
  };
  std::unique_ptr<CudaArena> arena;
  rows.Add({.what = "an arena of 1 GiB: reserve, allocate, map, zero",
            .figure = seconds([&] {
              arena = Take(CudaArena::Create({.bytes = bytes, .block_bytes = 1 << 20, .shared = true}, driver));
            }),
            .unit = "ms"});
  std::vector<engine::memory::UniqueFd> fds;
  rows.Add({.what = "a grant of it: export",
            .figure = seconds([&] {
              for (size_t i = 0; i < arena->chunks().size(); ++i) fds.push_back(Take(arena->Export(i)));
            }),
            .unit = "ms"});
  std::unique_ptr<CudaMapping> lease;
  rows.Add({.what = "its borrower: import, map",
            .figure = seconds([&] {
              lease = Take(CudaMapping::Reserve(driver, arena->mapped_bytes()));
              for (size_t i = 0; i < fds.size(); ++i) {
                Check(lease->Add(Take(driver.Import(fds[i].get())), arena->chunks()[i].bytes, Access::kRead));
              }
            }),
            .unit = "ms"});
  rows.Add({.what = "its end at the borrower: unmap", .figure = seconds([&] { lease.reset(); }), .unit = "ms"});
  rows.Add({.what = "other memory for all of it (--remap_on_return)",
            .figure = seconds([&] {
              for (size_t i = 0; i < arena->chunks().size(); ++i) Check(arena->Remap(i));
            }),
            .unit = "ms"});
}

}  // namespace swiftcache::gpu_bench
