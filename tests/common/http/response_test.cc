// SPDX-License-Identifier: Apache-2.0
#include "common/http/response.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace swiftcache::http {
namespace {

/// Keeps what it is given; has room where the test says so.
class Outlet final : public ResponseOutlet {
 public:
  bool Queue(std::string bytes, Part) override {
    queued.push_back(std::move(bytes));
    return true;
  }
  bool HasRoom(int64_t) override { return room; }
  void Cut() override {}
  void CutSlowReader() override { ++slow_readers_cut; }

  bool room = true;
  std::vector<std::string> queued;
  int slow_readers_cut = 0;
};

// The connection hears of the cut later: meanwhile the kernel may take bytes from it, so that there would be room again.
TEST(ResponseTest, NothingFollowsAWriteThatFoundNoRoom) {
  const auto outlet = std::make_shared<Outlet>();
  Response response(outlet, {});
  response.StartStream(200, "text/plain", {});
  EXPECT_TRUE(response.Write("first"));
  const size_t queued = outlet->queued.size();
  outlet->room = false;
  EXPECT_FALSE(response.Write("second"));
  outlet->room = true;
  EXPECT_FALSE(response.Write("third"));
  EXPECT_EQ(outlet->queued.size(), queued);
  EXPECT_EQ(outlet->slow_readers_cut, 1);
}

}  // namespace
}  // namespace swiftcache::http
