// SPDX-License-Identifier: Apache-2.0
// What peers may send, and must not.
#include "engine/transport/cuda_ipc/cuda_ipc_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/engine/transport/cuda_ipc/cuda_ipc_harness.h"
#include "tests/engine/transport/staging_memory.h"

namespace swiftcache::engine::transport::cuda_ipc {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

class CudaIpcMemoryTest : public testing::Test {
 protected:
  ~CudaIpcMemoryTest() override {
    arena_.reset();
    ExpectClean(driver_);
    ExpectClean(peer_);
  }
  absl::StatusCode Check(const std::vector<ShmPiece>& pieces, int64_t bytes) const {
    return memory_.CheckGrant({.grant = {.bytes = bytes}, .pieces = pieces}, bytes).code();
  }
  // An exported allocation of a peer.
  memory::UniqueFd Exported(int64_t bytes) {
    const auto memory = peer_.Allocate(bytes).value();
    memory::UniqueFd fd(peer_.Export(memory).value());
    EXPECT_TRUE(peer_.Release(memory).ok());
    return fd;
  }
  static std::vector<memory::UniqueFd> Two(memory::UniqueFd first, memory::UniqueFd second) {
    std::vector<memory::UniqueFd> fds;
    fds.push_back(std::move(first));
    fds.push_back(std::move(second));
    return fds;
  }

  FakeCudaDriver driver_, peer_;
  std::unique_ptr<backend::cuda::CudaArena> arena_ =
      backend::cuda::MakeArena(driver_, {.bytes = 12 * kUnit, .block_bytes = kUnit, .shared = true});
  CudaIpcMemory memory_{driver_, *arena_};
};

TEST_F(CudaIpcMemoryTest, AGrantIsOfTheChunksThatTheLeaseLiesIn) {
  EXPECT_EQ(Check({{0, kUnit}}, kUnit), absl::StatusCode::kOk);
  EXPECT_EQ(Check({{4096, kUnit}}, kUnit - 4096), absl::StatusCode::kOk);
  EXPECT_EQ(Check({{4096, 2 * kUnit}, {0, kUnit}}, 2 * kUnit), absl::StatusCode::kOk);
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(Check({{4096, kUnit}}, kUnit), kRefused);                     // shorter than the lease
  EXPECT_EQ(Check({{0, kUnit}, {0, kUnit}}, kUnit), kRefused);            // a chunk too many
  EXPECT_EQ(Check({{0, kUnit - 4096}}, 4096), kRefused);                  // no whole units
  EXPECT_EQ(Check({{100, kUnit}}, 4096), kRefused);                       // off the page
  EXPECT_EQ(Check({{0, kUnit}, {4096, kUnit}}, kUnit + 4096), kRefused);  // a gap
  EXPECT_EQ(Check({{kUnit, kUnit}}, 4096), kRefused);                     // behind the chunk
  EXPECT_EQ(Check({{-4096, kUnit}}, 4096), kRefused);
  EXPECT_EQ(Check({{0, 0}}, 4096), kRefused);
  EXPECT_EQ(Check({{0, -kUnit}, {0, kUnit}}, 4096), kRefused);
  EXPECT_EQ(Check({{0, kMost / kUnit * kUnit}, {0, kMost / kUnit * kUnit}}, 4096), kRefused);
  EXPECT_FALSE(memory_.CheckGrant({.grant = {.bytes = 8192}, .pieces = {{0, kUnit}}}, 4096).ok());
}

TEST_F(CudaIpcMemoryTest, ALeaseShowsWholeChunksAndWhereItBeginsInTheFirst) {
  const auto small = backend::cuda::MakeArena(
      driver_, {.bytes = 12 * kUnit, .block_bytes = kUnit, .shared = true, .chunk_bytes = 2 * kUnit});
  const CudaIpcMemory memory(driver_, *small);
  const auto shown = memory.Show(3 * kUnit, 4 * kUnit);
  ASSERT_TRUE(shown.ok());
  ASSERT_EQ(shown->pieces.size(), 3u);
  EXPECT_EQ(shown->fds.size(), 3u);
  EXPECT_EQ(shown->pieces[0].offset, kUnit);
  EXPECT_EQ(shown->pieces[0].bytes, 2 * kUnit);
  EXPECT_EQ(shown->pieces[2].offset, 0);
  EXPECT_EQ(Check(shown->pieces, 4 * kUnit), absl::StatusCode::kOk);
}

TEST_F(CudaIpcMemoryTest, StagingMemoryIsAPageAndMemoryOfAGpu) {
  const GoodStaging page(4096);
  const auto page_fd = [&] { return memory::UniqueFd(dup(page.fd.get())); };
  EXPECT_TRUE(memory_.MapStaging(2 * kUnit, Two(page_fd(), Exported(2 * kUnit))).ok());
  EXPECT_FALSE(memory_.MapStaging(kUnit, Two(page_fd(), Exported(2 * kUnit))).ok());      // of another size
  EXPECT_FALSE(memory_.MapStaging(kUnit + 4096, Two(page_fd(), Exported(kUnit))).ok());   // no whole units
  EXPECT_FALSE(memory_.MapStaging(kUnit, Two(PlainMemory(4096), Exported(kUnit))).ok());  // a page that can go away
  EXPECT_FALSE(memory_.MapStaging(kUnit, Two(page_fd(), memory::UniqueFd(open("/dev/null", O_RDONLY)))).ok());
  EXPECT_EQ(driver_.Misuse(), "");
}

TEST_F(CudaIpcMemoryTest, AnArenaThatIsNotSharedIsNotLent) {
  FakeCudaDriver driver;
  const auto arena = backend::cuda::MakeArena(driver, {.bytes = kUnit, .block_bytes = kUnit});
  EXPECT_EQ(CudaIpcMemory(driver, *arena).CheckLendable().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(memory_.CheckLendable().ok());
}

}  // namespace
}  // namespace swiftcache::engine::transport::cuda_ipc
