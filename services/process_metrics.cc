// SPDX-License-Identifier: Apache-2.0
#include "services/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <system_error>

#include "absl/synchronization/mutex.h"
#include "common/base/version.h"
#include "common/log/log.h"

namespace swiftcache::services {
namespace {

namespace fs = std::filesystem;

// /proc/self/stat behind the name, which may have spaces and parentheses in it: field `number` of proc(5), from 4 on.
std::optional<int64_t> StatField(int number) {
  std::ifstream file("/proc/self/stat");
  file.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  char state = 0;
  file >> state;
  int64_t value = 0;
  for (int field = 4; field <= number; ++field) file >> value;
  return file ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    int64_t seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<double> StartTimeSeconds() {
  const std::optional<int64_t> boot = BootTimeSeconds(), ticks = StatField(22);
  if (!boot || !ticks) return std::nullopt;
  return static_cast<double>(*boot) + static_cast<double>(*ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void ExportMemory(Metrics& metrics) {
  const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
  std::ifstream file("/proc/self/statm");
  double virtual_pages = 0, resident_pages = 0;
  if (!(file >> virtual_pages >> resident_pages)) return;
  metrics.Gauge("process_virtual_memory_bytes", "Virtual memory").Set(virtual_pages * page);
  metrics.Gauge("process_resident_memory_bytes", "Resident memory").Set(resident_pages * page);
}

void ExportFiles(Metrics& metrics) {
  std::error_code error;
  int64_t open = 0;
  for (fs::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end; entry.increment(error))
    ++open;
  if (!error) metrics.Gauge("process_open_fds", "Open file descriptors").Set(static_cast<double>(open - 1));
  rlimit most{};
  if (getrlimit(RLIMIT_NOFILE, &most) == 0) {
    metrics.Gauge("process_max_fds", "File descriptors that may be open").Set(static_cast<double>(most.rlim_cur));
  }
}

void ExportTimes(Metrics& metrics) {
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * t.tv_usec; };
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    prometheus::Counter& cpu = metrics.Counter("process_cpu_seconds_total", "Processor time, of user and system");
    cpu.Increment(std::max(0.0, seconds(used.ru_utime) + seconds(used.ru_stime) - cpu.Value()));
  }
  static const std::optional<double> start = StartTimeSeconds();
  if (start) metrics.Gauge("process_start_time_seconds", "Start of the process, since 1970").Set(*start);
}

void ExportState(Metrics& metrics, const ProcessState& state) {
  Metrics::Labels build = state.build;
  build.insert({{"program", state.program}, {"version", kVersion}});
  metrics.Gauge("swiftcache_build_info", "What runs, in its labels", build).Set(1);
  metrics.Gauge("swiftcache_ready", "Whether it takes requests").Set(state.ready ? 1 : 0);
  metrics.Gauge("swiftcache_draining", "Whether it ends").Set(state.draining ? 1 : 0);
  prometheus::Counter& lost =
      metrics.Counter("swiftcache_log_lines_lost_total", "Log lines that standard error did not take");
  lost.Increment(static_cast<double>(LogLinesLost()) - lost.Value());
}

}  // namespace

std::string Scrape(Metrics& metrics, const ProcessState& state) {
  ABSL_CONST_INIT static absl::Mutex one_at_a_time(absl::kConstInit);
  {
    absl::MutexLock lock(&one_at_a_time);
    ExportState(metrics, state);
    ExportMemory(metrics);
    ExportFiles(metrics);
    ExportTimes(metrics);
  }
  return metrics.Serialize();
}

}  // namespace swiftcache::services
