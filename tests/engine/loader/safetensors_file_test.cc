// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace swiftcache::engine::loader {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

void ExpectRefused(const std::string& bytes, const std::string& words) {
  const absl::Status status = ParseSafetensors(std::as_bytes(std::span(bytes)), "m.safetensors").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("m.safetensors"), HasSubstr(words)));
}

TEST(SafetensorsFileTest, TensorsAreViewsIntoTheFile) {
  const std::string bytes = File(R"({"__metadata__": {"format": "pt"},
      "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
      "b": {"dtype": "I64", "shape": [], "data_offsets": [12, 20]},
      "none": {"dtype": "F32", "shape": [0, 5], "data_offsets": [20, 20]}})",
                                 std::string(20, 'x'));
  const auto tensors = ParseSafetensors(std::as_bytes(std::span(bytes)), "m.safetensors");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3);
  EXPECT_EQ(tensors->at("a").format, backend::WeightFormat::kBf16);
  EXPECT_THAT(tensors->at("a").shape, ElementsAre(2, 3));
  EXPECT_EQ(tensors->at("a").data.size(), 12);
  EXPECT_EQ(static_cast<const void*>(tensors->at("a").data.data()), bytes.data() + bytes.size() - 20);
  EXPECT_FALSE(tensors->at("b").format.has_value());
  EXPECT_EQ(tensors->at("b").dtype, "I64");
}

TEST(SafetensorsFileTest, BytesThatBelongToNobodyAreLetBe) {
  const std::string bytes =
      File(R"({"a": {"dtype": "F16", "shape": [1], "data_offsets": [3, 5]}})", std::string(9, 'x'));
  EXPECT_TRUE(ParseSafetensors(std::as_bytes(std::span(bytes)), "m.safetensors").ok());
}

TEST(SafetensorsFileTest, OverlapsByOneByteAreRefused) {
  ExpectRefused(File(R"({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]},
                         "b": {"dtype": "F16", "shape": [2], "data_offsets": [3, 7]}})",
                     std::string(8, 'x')),
                "tensors \"a\" and \"b\" overlap");
}

TEST(SafetensorsFileTest, SizesMustAgree) {
  ExpectRefused(File(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", "xxxx"),
                "found 4 bytes, want 8");
  ExpectRefused(File(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", "xxx"), "begin <= end <= 3");
  ExpectRefused(File("{}", "").substr(0, 9), "header length 2, want at most 1");
}

}  // namespace
}  // namespace swiftcache::engine::loader
