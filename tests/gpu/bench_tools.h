// SPDX-License-Identifier: Apache-2.0
// What the parts of swiftcache-gpu-bench share: time on a stream, and rows of figures, each beside its bound.
//
//   Stopwatch stopwatch(driver, stream);
//   rows.Add({.what = "a plain copy", .figure = bytes / stopwatch.Time([&] { Check(driver.Copy(stream, copies)); }) * 1e-9,
//             .unit = "GB/s", .share = ..., .of = "...", .at_least = 0.8});
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/backend/backend.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/kernels.h"

namespace swiftcache::gpu_bench {

[[noreturn]] inline void Fail(const std::string& message, int code = 1) {
  std::fprintf(stderr, "swiftcache-gpu-bench: %s\n", message.c_str());
  std::exit(code);
}

template <class T>
T Take(absl::StatusOr<T> value) {
  if (!value.ok()) Fail(std::string(value.status().message()));
  return *std::move(value);
}

inline void Check(const absl::Status& status) {
  if (!status.ok()) Fail(std::string(status.message()));
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Seconds of what `submit` sets going on the stream, beside the calls of the driver: so many go one after the other that
/// they take some 20 ms. The median of five, after one that does not count.
class Stopwatch {
 public:
  Stopwatch(engine::backend::cuda::Driver& driver, engine::backend::cuda::Stream stream)
      : driver_(driver), stream_(stream) {}
  double Time(const std::function<void()>& submit) {
    Of(submit, 1);
    const auto times = std::clamp<int64_t>(static_cast<int64_t>(0.02 / Of(submit, 1)), 1, 500);
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) seconds.push_back(Of(submit, times) / static_cast<double>(times));
    return Median(std::move(seconds));
  }

 private:
  double Of(const std::function<void()>& submit, int64_t times) {
    driver_.Finish(stream_);
    const absl::Time begin = absl::Now();
    for (int64_t i = 0; i < times; ++i) submit();
    driver_.Finish(stream_);
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }

  engine::backend::cuda::Driver& driver_;
  const engine::backend::cuda::Stream stream_;
};

struct Row {
  std::string what;
  double figure = 0;
  std::string unit;
  double share = 0;     // of the bound that `of` names; none: 0
  std::string of = {};  // what it is a share of
  double at_least = 0;  // asked of the share; none: 0
  double at_most = 0;   // likewise
};

/// Printed as they come, and kept.
class Rows {
 public:
  void Add(const Row& row) {
    nlohmann::json kept = {{"what", row.what}, {"figure", row.figure}, {"unit", row.unit}};
    std::printf("%-62s %10.4g %-9s", row.what.c_str(), row.figure, row.unit.c_str());
    if (!row.of.empty()) {
      kept["share"] = row.share;
      kept["of"] = row.of;
      std::printf(" %6.3f of %s", row.share, row.of.c_str());
    }
    if (row.at_least > 0) kept["at_least"] = row.at_least;
    if (row.at_most > 0) kept["at_most"] = row.at_most;
    if (row.at_least > 0 || row.at_most > 0) {
      const bool good = row.at_least > 0 ? row.share >= row.at_least : row.share <= row.at_most;
      std::printf("  %s (asked: %s %g)", good ? "ok" : "MISSED", row.at_least > 0 ? "at least" : "at most",
                  row.at_least > 0 ? row.at_least : row.at_most);
    }
    std::printf("\n");
    std::fflush(stdout);
    rows_.push_back(std::move(kept));
  }
  const nlohmann::json& all() const { return rows_; }

 private:
  nlohmann::json rows_ = nlohmann::json::array();
};

struct Bounds {
  double flops = 0, bytes = 0;  // a second: products of bf16; reads and writes of a plain copy together
};

// bench_copies.cc
Bounds MeasureBounds(engine::backend::cuda::Driver& driver, engine::backend::cuda::Kernels& kernels,
                     engine::backend::cuda::Stream stream, Rows& rows);
void MeasureCopies(engine::backend::cuda::Driver& driver, engine::backend::cuda::Stream stream, Rows& rows);
void MeasureMemory(engine::backend::cuda::Driver& driver, Rows& rows);

// bench_attention.cc
void MeasureAttention(const engine::backend::AttentionShape& shape, engine::backend::cuda::Driver& driver,
                      engine::backend::cuda::Kernels& kernels, const Bounds& bounds, Rows& rows);

}  // namespace swiftcache::gpu_bench
