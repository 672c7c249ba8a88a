// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/tensor_overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace swiftcache::engine::loader {
namespace {

using ::testing::HasSubstr;

class TensorOverlapTest : public testing::Test {
 protected:
  std::span<const std::byte> Bytes(size_t offset, size_t count) const {
    return std::span<const std::byte>(file_).subspan(offset, count);
  }
  std::array<std::byte, 16> file_{};
};

TEST_F(TensorOverlapTest, TensorsMayTouchAndLeaveGapsInAnyOrder) {
  EXPECT_TRUE(CheckNoOverlap("m", {}).ok());
  EXPECT_TRUE(CheckNoOverlap("m", {{"c", Bytes(9, 7)}, {"a", Bytes(0, 4)}, {"b", Bytes(4, 4)}}).ok());
}

TEST_F(TensorOverlapTest, OneSharedByteIsRefusedAndBothAreNamed) {
  const absl::Status status = CheckNoOverlap("m", {{"c", Bytes(9, 7)}, {"b", Bytes(3, 4)}, {"a", Bytes(0, 4)}});
  EXPECT_EQ(status, absl::InvalidArgumentError("m: tensors \"a\" and \"b\" overlap"));
}

TEST_F(TensorOverlapTest, ATensorWithinAnotherIsRefused) {
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(CheckNoOverlap("m", {{"outer", Bytes(0, 8)}, {"inner", Bytes(2, 1)}}).code(), code);
  EXPECT_EQ(CheckNoOverlap("m", {{"one", Bytes(0, 8)}, {"same", Bytes(0, 8)}}).code(), code);
}

TEST_F(TensorOverlapTest, TensorsOfNoBytesOverlapNothing) {
  EXPECT_TRUE(CheckNoOverlap("m", {{"a", Bytes(0, 8)}, {"none", Bytes(3, 0)}}).ok());
  const absl::Status status = CheckNoOverlap("m", {{"a", Bytes(0, 8)}, {"none", Bytes(3, 0)}, {"b", Bytes(7, 2)}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"a\" and \"b\""));
}

}  // namespace
}  // namespace swiftcache::engine::loader
