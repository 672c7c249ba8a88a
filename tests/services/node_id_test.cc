// SPDX-License-Identifier: Apache-2.0
#include "services/node_id.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/name.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::services {
namespace {

class NodeIdTest : public testing::Test {
 protected:
  const TempFolder temp_folder_;
  const std::filesystem::path folder_ = temp_folder_.path();
};

TEST_F(NodeIdTest, EnginesOfOneFolderAreOfOneNodeWhateverTheyCallIt) {
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_directory_symlink(folder_, link);
  EXPECT_EQ(NodeId(link, "shm.2"), NodeId(folder_, "shm.2"));
  EXPECT_EQ(NodeId(std::filesystem::relative(folder_), "shm.2"), NodeId(folder_, "shm.2"));
  EXPECT_NE(NodeId(folder_.parent_path(), "shm.2"), NodeId(folder_, "shm.2"));
}

TEST_F(NodeIdTest, EnginesThatDoNotUnderstandEachOtherAreOfDifferentNodes) {
  EXPECT_NE(NodeId(folder_, "shm.2"), NodeId(folder_, "cuda_ipc.2"));
  EXPECT_NE(NodeId(folder_, "shm.2"), NodeId(folder_, "shm.3"));
}

TEST_F(NodeIdTest, EnginesOfDifferentUsersAreOfDifferentNodes) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string roots = NodeId(folder_, "shm.2");
  ASSERT_EQ(seteuid(65534), 0);
  const std::string others = NodeId(folder_, "shm.2");
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_NE(others, roots);
}

TEST_F(NodeIdTest, IsAName) {
  const std::string id = NodeId(folder_, "cuda_ipc.65535");
  EXPECT_TRUE(IsName(id)) << id;
  EXPECT_TRUE(IsName(absl::StrCat(std::string(36, 'f'), ":", UINT64_MAX, ":", UINT64_MAX, ":", std::string(32, 'p'),
                                  ":", UINT32_MAX)));
}

int64_t OuterUserOf(const std::string& uid_map, int64_t uid) {
  std::istringstream map(uid_map);
  return OuterUser(map, uid);
}

TEST(OuterUserTest, AUserOfAContainerIsWhoItIsOutside) {
  EXPECT_EQ(OuterUserOf("         0          0 4294967295\n", 1000), 1000);
  const std::string rootless = "0 1000 1\n1 100000 65536\n";
  EXPECT_EQ(OuterUserOf(rootless, 0), 1000);
  EXPECT_EQ(OuterUserOf(rootless, 1), 100000);
  EXPECT_EQ(OuterUserOf(rootless, 65536), 165535);
  EXPECT_EQ(OuterUserOf(rootless, 65537), 65537);
  EXPECT_EQ(OuterUserOf("", 7), 7);
}

}  // namespace
}  // namespace swiftcache::services
