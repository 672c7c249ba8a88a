// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/child_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace swiftcache::engine::kv {
namespace {

struct Node {
  std::vector<int32_t> tokens;
};

std::vector<const Node*> In(const ChildMap<Node>& children) {
  std::vector<const Node*> found;
  children.ForEach([&found](const Node* node) { found.push_back(node); });
  std::sort(found.begin(), found.end());
  return found;
}

// One child, then several, then one again, then none: each is found by its tokens, and nothing else is.
TEST(ChildMapTest, FindsEachOfOneAndOfSeveral) {
  std::vector<Node> nodes = {{{1, 2}}, {{1, 3}}, {{4, 5}}};
  ChildMap<Node> children;
  EXPECT_EQ(children.Find(nodes[0].tokens), nullptr);
  for (size_t count = 1; count <= nodes.size(); ++count) {
    children.Add(&nodes[count - 1]);
    EXPECT_EQ(In(children).size(), count);
    for (size_t i = 0; i < nodes.size(); ++i) {
      EXPECT_EQ(children.Find(nodes[i].tokens), i < count ? &nodes[i] : nullptr) << i << " of " << count;
    }
  }
  for (size_t gone = 0; gone < nodes.size(); ++gone) {
    children.Remove(&nodes[gone]);
    EXPECT_EQ(children.empty(), gone + 1 == nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      EXPECT_EQ(children.Find(nodes[i].tokens), i > gone ? &nodes[i] : nullptr) << i << " after " << gone;
    }
  }
}

TEST(ChildMapTest, ClearedItMayHaveOthers) {
  std::vector<Node> nodes = {{{1, 2}}, {{1, 3}}, {{4, 5}}};
  ChildMap<Node> children;
  children.Add(&nodes[0]);
  children.Add(&nodes[1]);
  children.Clear();
  EXPECT_TRUE(children.empty());
  children.Add(&nodes[2]);
  EXPECT_EQ(In(children), std::vector<const Node*>{&nodes[2]});
  EXPECT_EQ(children.Find(nodes[0].tokens), nullptr);
}

}  // namespace
}  // namespace swiftcache::engine::kv
