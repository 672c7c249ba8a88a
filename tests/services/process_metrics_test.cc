// SPDX-License-Identifier: Apache-2.0
#include "services/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/version.h"

namespace swiftcache::services {
namespace {

class ProcessMetricsTest : public testing::Test {
 protected:
  double Read(const std::string& name) {
    const std::string scrape = "\n" + Scrape(metrics_, {.program = "test", .ready = true});
    const size_t at = scrape.find("\n" + name + " ");
    double value = -1;
    EXPECT_TRUE(
        at != std::string::npos &&
        absl::SimpleAtod(scrape.substr(at + name.size() + 2, scrape.find('\n', at + 1) - at - name.size() - 2), &value))
        << name << " in " << scrape;
    return value;
  }
  Metrics metrics_;
};

TEST_F(ProcessMetricsTest, SaysWhatRunsAndWhetherItTakesRequests) {
  const std::string ready =
      Scrape(metrics_, {.program = "swiftcache-engine", .ready = true, .build = {{"backend", "cpu"}, {"isa", "avx2"}}});
  EXPECT_TRUE(absl::StrContains(
      ready,
      std::string("swiftcache_build_info{backend=\"cpu\",isa=\"avx2\",program=\"swiftcache-engine\",version=\"") +
          kVersion + "\"} 1\n"))
      << ready;
  EXPECT_TRUE(absl::StrContains(ready, "swiftcache_ready 1\n"));
  EXPECT_TRUE(absl::StrContains(ready, "swiftcache_draining 0\n"));
  const std::string draining = Scrape(metrics_, {.program = "swiftcache-engine", .draining = true});
  EXPECT_TRUE(absl::StrContains(draining, "swiftcache_ready 0\n"));
  EXPECT_TRUE(absl::StrContains(draining, "swiftcache_draining 1\n"));
}

TEST_F(ProcessMetricsTest, MemoryThatIsTakenIsSeen) {
  const double before = Read("process_resident_memory_bytes");
  std::vector<char> taken(64 << 20);
  std::memset(taken.data(), 1, taken.size());
  EXPECT_GT(Read("process_resident_memory_bytes"), before + 60e6);
  EXPECT_GT(Read("process_virtual_memory_bytes"), Read("process_resident_memory_bytes"));
}

TEST_F(ProcessMetricsTest, AnOpenFileIsSeen) {
  const double before = Read("process_open_fds");
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(Read("process_open_fds"), before + 1);
  close(file);
  EXPECT_EQ(Read("process_open_fds"), before);
  EXPECT_GT(Read("process_max_fds"), before);
}

TEST_F(ProcessMetricsTest, ProcessorTimeGrowsAndTheStartIsInThePast) {
  const double before = Read("process_cpu_seconds_total");
  volatile double sum = 0;
  while (Read("process_cpu_seconds_total") < before + 0.05) sum = sum + 1;
  const double start = Read("process_start_time_seconds"), now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_LE(start, now + 1);
  EXPECT_GT(start, now - 3600);
}

}  // namespace
}  // namespace swiftcache::services
