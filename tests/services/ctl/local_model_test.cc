// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/local_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "tests/fakes/temp_folder.h"

namespace swiftcache::services::ctl {
namespace {

namespace fs = std::filesystem;

class LocalModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ + "/coder");
    Write("small.v2.gguf", 1000);
    Write("coder/model-1.safetensors", 300);
    Write("coder/model-2.safetensors", 200);
  }
  void Write(const std::string& file, size_t bytes) { std::ofstream(folder_ + "/" + file) << std::string(bytes, 'x'); }
  std::string Path(const std::string& file) const { return folder_ + "/" + file; }

  const TempFolder temp_folder_;
  const std::string folder_ = temp_folder_.path();
};

TEST_F(LocalModelTest, IsCalledAsItsFileOrFolderUnlessItIsGivenAName) {
  const auto models = ParseLocalModels({Path("small.v2.gguf"), Path("coder/"), "org/chat=" + Path("small.v2.gguf")});
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 3);
  EXPECT_EQ(models->at(0).name, "small.v2");
  EXPECT_EQ(models->at(0).file_bytes, 1000);
  EXPECT_EQ(models->at(1).name, "coder");
  EXPECT_EQ(models->at(1).file_bytes, 500);
  EXPECT_EQ(models->at(2).name, "org/chat");
  EXPECT_EQ(models->at(2).path, Path("small.v2.gguf"));
  EXPECT_EQ(models->at(2).engine, "org_chat");
}

TEST_F(LocalModelTest, EnginesHaveNamesOfTheirOwn) {
  const auto models = ParseLocalModels({"a=" + Path("coder"), "a=" + Path("coder"), "broker=" + Path("coder")});
  ASSERT_TRUE(models.ok()) << models.status();
  std::vector<std::string> engines;
  for (const LocalModel& model : *models) engines.push_back(model.engine);
  EXPECT_THAT(engines, testing::ElementsAre("a", "a-2", "broker-2"));
}

TEST_F(LocalModelTest, APathWithAnEqualsSignIsAPathWhereThereIsSuchAFile) {
  Write("a=b.gguf", 1);
  const auto models = ParseLocalModels({Path("a=b.gguf"), "name=" + Path("a=b.gguf")});
  EXPECT_TRUE(absl::IsInvalidArgument(models.status()));  // the first: '=' is in no name
  EXPECT_THAT(std::string(models.status().message()), testing::HasSubstr("give it a name: NAME=" + Path("a=b.gguf")));
  const auto named = ParseLocalModels({"name=" + Path("a=b.gguf")});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->front().path, Path("a=b.gguf"));
}

TEST_F(LocalModelTest, TwoModelsOfOneNameAreRefused) {
  const auto models = ParseLocalModels({"chat=" + Path("coder"), "chat=" + Path("small.v2.gguf")});
  EXPECT_EQ(models.status(),
            absl::InvalidArgumentError("model chat is two: '" + Path("coder") + "' and '" + Path("small.v2.gguf") +
                                       "'; give each a name of its own: NAME=PATH"));
  EXPECT_TRUE(ParseLocalModels({"chat=" + Path("coder"), "chat=" + Path("coder/")}).ok()) << "two engines of one model";
}

TEST_F(LocalModelTest, HalfOfANamedModelIsRefused) {
  const std::string wanted = "; wanted a GGUF file or a Hugging Face folder, or NAME=PATH";
  EXPECT_EQ(ParseLocalModels({"chat="}).status(), absl::InvalidArgumentError("'chat=' names no file" + wanted));
  EXPECT_EQ(ParseLocalModels({"=" + Path("coder")}).status(),
            absl::InvalidArgumentError("'=" + Path("coder") + "' names no model" + wanted));
}

TEST_F(LocalModelTest, WhatIsNotThereIsTheUsersMistake) {
  const auto models = ParseLocalModels({Path("coder"), "chat=/nowhere"});
  EXPECT_TRUE(absl::IsInvalidArgument(models.status()));
  EXPECT_EQ(models.status().message(), "there is no model at '/nowhere'; wanted a GGUF file or a Hugging Face folder");
}

std::vector<LocalModel> OfBytes(std::vector<int64_t> files) {
  std::vector<LocalModel> models;
  for (const int64_t bytes : files) models.push_back({.file_bytes = bytes});
  return models;
}

TEST(KvCacheShareTest, IsHalfOfWhatTheWeightsLeaveForAllEnginesTogether) {
  EXPECT_EQ(KvCacheShare(6 * kGiB, OfBytes({kGiB})), kGiB);
  EXPECT_EQ(KvCacheShare(6 * kGiB, OfBytes({kGiB / 2, kGiB / 2})), kGiB / 2);
}

TEST(KvCacheShareTest, IsBounded) {
  EXPECT_EQ(KvCacheShare(INT64_MAX, OfBytes({kGiB})), 2 * kGiB);
  EXPECT_EQ(KvCacheShare(kGiB, OfBytes({kGiB})), 64 * kMiB);
  EXPECT_EQ(KvCacheShare(0, OfBytes({0})), 64 * kMiB);
}

}  // namespace
}  // namespace swiftcache::services::ctl
