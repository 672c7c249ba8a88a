// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/field_count.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "swiftcache/v1/generate.pb.h"

namespace swiftcache {
namespace {

using ::testing::HasSubstr;

constexpr int kChat = 5, kSampling = 6, kPrompt = 3, kTokenIds = 4, kStop = 7;  // of GenerateRequest, of Sampling
constexpr int kMessages = 1, kVariables = 4;                                    // of Chat
constexpr int kUnknown = 99;

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string Tag(int field, int wire_type) { return Varint(static_cast<uint64_t>(field) << 3 | wire_type); }
std::string Number(int field, uint64_t value) { return Tag(field, 0) + Varint(value); }
std::string Fixed64(int field) { return Tag(field, 1) + std::string(8, 'x'); }
std::string Field(int field, const std::string& content) { return Tag(field, 2) + Varint(content.size()) + content; }
std::string Group(int field, const std::string& content) { return Tag(field, 3) + content + Tag(field, 4); }

std::string Times(int times, const std::string& bytes) {
  std::string out;
  for (int i = 0; i < times; ++i) out += bytes;
  return out;
}

// In pieces, as it comes from the network.
absl::Status Check(const std::string& bytes, int64_t max_fields, int64_t max_numbers = 1 << 20) {
  constexpr size_t kPieceBytes = 5;
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += kPieceBytes) slices.emplace_back(bytes.substr(at, kPieceBytes));
  return CheckFieldCount(grpc::ByteBuffer(slices.data(), slices.size()), *v1::GenerateRequest::descriptor(),
                         {.fields = max_fields, .numbers = max_numbers});
}

TEST(FieldCountTest, EachElementAndEachFieldCountsAtAnyDepth) {
  const struct {
    const char* name;
    std::string bytes;  // with ten of them
  } cases[] = {
      {"empty messages", Field(kChat, Times(9, Field(kMessages, "")))},
      {"messages with content", Field(kChat, Times(3, Field(kMessages, Field(1, "user") + Field(2, "hi"))))},
      {"empty entries of a map", Field(kChat, Times(9, Field(kVariables, "")))},
      {"entries of a map", Field(kChat, Times(3, Field(kVariables, Field(1, "name") + Field(2, ""))))},
      {"texts", Field(kSampling, Times(9, Field(kStop, "")))},
      {"a field again and again", Times(10, Field(kPrompt, "x"))},
      {"numbers that are not known", Times(10, Number(kUnknown, 1))},
      {"what is not known within a message", Field(kChat, Field(kMessages, Times(8, Fixed64(kUnknown))))},
      {"texts that are not known", Times(10, Field(kUnknown, "x"))},
      {"groups", Times(5, Group(kUnknown, Number(1, 1)))},
      {"groups in groups", Group(kUnknown, Group(1, Times(8, Number(1, 1))))},
      {"a list of numbers that are of another type", Field(kTokenIds, Times(9, Fixed64(1)))},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Check(c.bytes, 10), absl::OkStatus()) << c.name;
    const absl::Status status = Check(c.bytes, 9);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("more than 9 fields")) << c.name;
  }
}

TEST(FieldCountTest, NumbersInListsAreCountedByThemselvesAndBytesOfTextsAreNot) {
  const std::string packed = Field(kTokenIds, Field(1, Times(500, Varint(1) + Varint(300))));
  const std::string single = Field(kTokenIds, Times(1000, Number(1, 300)));
  EXPECT_EQ(Check(packed + single, 2, 2000), absl::OkStatus());
  EXPECT_EQ(Check(packed + single, 2, 1999),
            absl::InvalidArgumentError("the message has more than 1999 numbers in lists, the last of them "
                                       "swiftcache.v1.TokenIds.ids; wants at most 1999: send fewer"));
  EXPECT_EQ(Check(packed, 1, 999).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Check(Field(kPrompt, std::string(1000, '\x0a')), 1), absl::OkStatus());
}

TEST(FieldCountTest, TheErrorNamesTheFieldTheLimitAndTheRemedy) {
  EXPECT_EQ(Check(Field(kChat, Times(9, Field(kMessages, ""))), 4),
            absl::InvalidArgumentError("the message has more than 4 fields and elements of lists, the last of them "
                                       "swiftcache.v1.Chat.messages; wants at most 4: send fewer"));
  EXPECT_THAT(std::string(Check(Number(kUnknown, 1), 0).message()), HasSubstr("one that is not known"));
}

// The parser reads on as if the inner length were right, and makes objects of what it finds.
TEST(FieldCountTest, WhatIsLongerThanItsHolderIsRefused) {
  const std::string inner = Tag(kMessages, 2) + Varint(2000);  // of a chat that has but these bytes
  const std::string hidden = Times(1000, Number(9, 0));        // a priority outside, and not known in a message
  EXPECT_EQ(Check(Field(kChat, inner) + hidden, 5), absl::InvalidArgumentError(kCannotBeParsed));
}

TEST(FieldCountTest, BytesThatAreNoMessageAreRefused) {
  std::string deep_groups;
  for (int i = 0; i < 200; ++i) deep_groups = Group(kUnknown, deep_groups);
  for (const std::string& bytes :
       {std::string("\x0a\x7f"), Tag(kUnknown, 4), std::string(1, '\0'), Tag(kPrompt, 6), Tag(kUnknown, 3),
        Tag(kUnknown, 3) + Tag(kUnknown - 1, 4), Tag(kUnknown, 0), Field(kChat, Tag(kMessages, 2)), deep_groups}) {
    EXPECT_EQ(Check(bytes, 1000), absl::InvalidArgumentError(kCannotBeParsed));
  }
}

// Bytes of which most make a message, at least up to where they are spoiled.
std::string RandomFields(std::minstd_rand& random, int depth) {
  std::string out;
  const auto below = [&random](int n) { return static_cast<int>(random() % n); };
  for (int left = below(6); left > 0; --left) {
    const int field = below(8) == 0 ? kUnknown : 1 + below(10);
    const std::string content = depth > 0 && below(3) > 0 ? RandomFields(random, depth - 1) : std::string(below(4), 1);
    const std::string fields[] = {Field(field, content), Field(field, content), Number(field, below(300)),
                                  Fixed64(field), Group(field, content)};
    out += fields[below(5)];
  }
  if (below(40) == 0) out = out.substr(0, below(static_cast<int>(out.size()) + 1));
  if (!out.empty() && below(40) == 0) out[below(static_cast<int>(out.size()))] = static_cast<char>(random());
  return out;
}

TEST(FieldCountTest, WhatIsCountedBoundsWhatTheParserTakesOfMemory) {
  constexpr int64_t kMost = 1 << 20;
  const google::protobuf::LogSilencer no_lines_of_texts_that_are_not_utf8;
  std::minstd_rand random(1);
  int parsed = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string bytes = RandomFields(random, 4);
    v1::GenerateRequest request;
    const bool parses = request.ParseFromString(bytes);
    if (!Check(bytes, kMost).ok()) {
      ASSERT_FALSE(parses) << i;  // it is never stricter
      ++refused;
      continue;
    }
    parsed += parses;
    std::vector<int64_t> limits(bytes.size() + 1);
    for (size_t k = 0; k < limits.size(); ++k) limits[k] = static_cast<int64_t>(k);
    const int64_t fields = *std::partition_point(limits.begin(), limits.end(),
                                                 [&bytes](int64_t most) { return !Check(bytes, most).ok(); });
    ASSERT_LE(request.SpaceUsedLong(), sizeof(request) + 12 * bytes.size() + 160 * fields) << i;
  }
  EXPECT_GT(parsed, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace swiftcache
