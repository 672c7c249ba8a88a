// SPDX-License-Identifier: Apache-2.0
// Opens every malformed and every unusual file that there is.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

#include "engine/backend/cpu/dequantize.h"
#include "engine/loader/checkpoint.h"
#include "tests/engine/loader/test_files.h"

namespace swiftcache::engine::loader {
namespace {

int64_t PeakResidentKiB() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

bool IsParserError(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument || status.code() == absl::StatusCode::kUnimplemented ||
         status.code() == absl::StatusCode::kNotFound;
}

void ExpectRefused(const std::string& folder, const nlohmann::json& row) {
  const std::string path = folder + "/" + row["path"].get<std::string>();
  const bool must_fail = row["expect"] == "error";
  const int64_t memory_before = PeakResidentKiB();
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<Checkpoint> opened = OpenCheckpoint(path);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 10.0) << path;
  EXPECT_LT(PeakResidentKiB() - memory_before, 64 * 1024) << path << ": memory";
  EXPECT_TRUE(!must_fail || !opened.ok()) << path << " was opened, though: " << row["what"];
  if (opened.ok()) return;
  const std::string message(opened.status().message());
  EXPECT_TRUE(IsParserError(opened.status())) << opened.status();
  EXPECT_NE(message.find(path), std::string::npos) << message << " does not name " << path;
  EXPECT_GT(message.size(), path.size() + 10) << message;
  EXPECT_LT(message.size(), path.size() + 500) << message;
  std::cout << row["what"].get<std::string>() << "\n    " << message.substr(folder.size() + 1) << "\n";
}

void SweepBad(const std::string& folder, size_t at_least) {
  const auto rows = ReadJsonLines(folder + "/cases.jsonl");
  ASSERT_GE(rows.size(), at_least);
  for (const auto& row : rows) ExpectRefused(folder, row);
}

void SweepOk(const std::string& folder) {
  const auto rows = ReadJsonLines(folder + "/cases.jsonl");
  ASSERT_EQ(rows.size(), 17);
  for (const auto& row : rows) {
    const std::string path = folder + "/" + row["path"].get<std::string>();
    const absl::StatusOr<Checkpoint> opened = OpenCheckpoint(path);
    ASSERT_TRUE(opened.ok()) << row["what"] << ": " << opened.status();
    EXPECT_EQ(opened->config.hidden_size, 8) << path;
    EXPECT_EQ(opened->config.head_dim, 4) << path;
    EXPECT_EQ(opened->config.vocab_size, 264) << path;
    EXPECT_EQ(opened->config.eos_ids.front(), 2) << path;
    EXPECT_EQ(opened->card.tokenizer.tokens.size(), 264) << path;
    EXPECT_EQ(opened->card.tokenizer.merges.size(), 5) << path;
    EXPECT_FALSE(opened->card.chat_template.empty()) << path;
  }
}

TEST(SweepTest, KeptMalformedFilesAreRefusedWithTheirName) { SweepBad(DataPath("bad"), 20); }

TEST(SweepTest, AllMalformedFilesAreRefusedWithTheirName) {
  const std::optional<std::string> folder = SharedPath("golden/bad");
  if (!folder) GTEST_SKIP() << "no shared reference data (SWIFTCACHE_SHARED)";
  SweepBad(*folder, 120);
}

TEST(SweepTest, UnusualButValidFilesAreOpened) { SweepOk(DataPath("ok")); }

// Every ok/ file holds the same model, whatever its format, dtype and order.
TEST(SweepTest, UnusualButValidFilesHoldTheSameWeights) {
  const absl::StatusOr<Checkpoint> base = OpenCheckpoint(DataPath("ok/hf-base"));
  ASSERT_TRUE(base.ok()) << base.status();
  for (const auto& row : ReadJsonLines(DataPath("ok/cases.jsonl"))) {
    const std::string path = DataPath("ok/" + row["path"].get<std::string>());
    const absl::StatusOr<Checkpoint> other = OpenCheckpoint(path);
    ASSERT_TRUE(other.ok()) << other.status();
    for (const auto& [name, source] : base->weights->tensors()) {
      const absl::StatusOr<const backend::WeightSource*> found = other->weights->Find(name);
      ASSERT_TRUE(found.ok()) << path << ": " << found.status();
      std::vector<float> want(source.cols), got(source.cols);
      for (int64_t r = 0; r < source.rows; ++r) {
        backend::cpu::DequantizeRow(source, r, want.data());
        backend::cpu::DequantizeRow(**found, r, got.data());
        ASSERT_EQ(want, got) << path << " " << name << " row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace swiftcache::engine::loader
