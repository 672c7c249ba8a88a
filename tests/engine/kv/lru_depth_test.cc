// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/lru_depth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>

namespace swiftcache::engine::kv {
namespace {

TEST(LruDepthTest, IsThatOfANaiveListWhateverIsUsed) {
  for (const int64_t capacity : {1, 2, 7, 64}) {
    std::mt19937 rng(capacity);
    LruDepth depths(capacity);
    std::list<uint64_t> naive;  // the last used first
    std::map<uint64_t, uint8_t> notes;
    for (int i = 0; i < 3000; ++i) {
      const uint64_t key = rng() % (2 * capacity + 1);
      const auto at = std::find(naive.begin(), naive.end(), key);
      if (at == naive.end()) {
        EXPECT_EQ(depths.Of(key), std::nullopt);
      } else {
        EXPECT_EQ(depths.Of(key), std::distance(naive.begin(), at) + 1) << "capacity " << capacity << ", use " << i;
      }
      ASSERT_EQ(depths.NoteOf(key), notes[key]);
      if (rng() % 3 == 0) {
        depths.SetNote(key, i % 256);
        if (at != naive.end()) notes[key] = i % 256;
        continue;
      }
      depths.Use(key);
      naive.remove(key);
      naive.push_front(key);
      notes[key] = 0;
      if (static_cast<int64_t>(naive.size()) > capacity) {
        notes[naive.back()] = 0;
        naive.pop_back();
      }
      ASSERT_EQ(depths.size(), static_cast<int64_t>(naive.size()));
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::kv
