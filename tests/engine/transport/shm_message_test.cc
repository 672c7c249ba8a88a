// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace swiftcache::engine::transport {
namespace {

using Bytes = std::vector<std::byte>;

absl::StatusCode ParseCode(const Bytes& bytes) { return ParseShmMessage(bytes).status().code(); }

ShmHello Hello() {
  ShmHello hello = {.lease = 5, .staging_bytes = 8192};
  SetWireText(hello.capability, "secret");
  SetWireText(hello.instance, "chat-1");
  return hello;
}

TEST(ShmMessageTest, EveryKindSurvivesTheWire) {
  const auto hello = ParseShmMessage(EncodeShmMessage(Hello()));
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(std::get<ShmHello>(*hello).lease, 5);
  EXPECT_EQ(TextOf(std::get<ShmHello>(*hello).capability), "secret");
  EXPECT_EQ(TextOf(std::get<ShmHello>(*hello).instance), "chat-1");

  const ShmPiece pieces[] = {{4096, 8192}, {0, 4096}};
  const auto grant = ParseShmMessage(EncodeShmMessage(ShmGrant{9, 12288, 17, 2}, pieces));
  ASSERT_TRUE(grant.ok()) << grant.status();
  const auto& message = std::get<ShmGrantMessage>(*grant);
  EXPECT_EQ(message.grant.epoch, 9);
  EXPECT_EQ(message.grant.word, 17);
  ASSERT_EQ(message.pieces.size(), 2);
  EXPECT_EQ(message.pieces[0].offset, 4096);
  EXPECT_EQ(message.pieces[1].bytes, 4096);
  EXPECT_TRUE(CheckShmGrant(message, 12288, 4096).ok());

  const auto store = ParseShmMessage(EncodeShmMessage(ShmStore{1, 2, 3, 4}));
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(std::get<ShmStore>(*store).staging_offset, 4);
  EXPECT_EQ(std::get<ShmStored>(*ParseShmMessage(EncodeShmMessage(ShmStored{8}))).ticket, 8);
  EXPECT_EQ(std::get<ShmRevoke>(*ParseShmMessage(EncodeShmMessage(ShmRevoke{8}))).time_left_ns, 8);
  EXPECT_EQ(std::get<ShmRefuse>(*ParseShmMessage(EncodeShmMessage(ShmRefuse{LeaseRefusal::kAlreadyOpen}))).reason,
            LeaseRefusal::kAlreadyOpen);
  EXPECT_TRUE(std::holds_alternative<ShmRenew>(*ParseShmMessage(EncodeShmMessage(ShmRenew{7}))));
  EXPECT_TRUE(std::holds_alternative<ShmRenewed>(*ParseShmMessage(EncodeShmMessage(ShmRenewed{}))));
  EXPECT_TRUE(std::holds_alternative<ShmRelease>(*ParseShmMessage(EncodeShmMessage(ShmRelease{}))));
}

// The table in shm_message.h, to the byte.
TEST(ShmMessageTest, TheLayoutIsTheTables) {
  const Bytes store = EncodeShmMessage(ShmStore{0x11, 0x22, 0x33, 0x44});
  const unsigned char wanted[40] = {8, 0, 2, 0, 40,   0, 0, 0, 0x11, 0, 0, 0, 0,    0, 0, 0, 0x22, 0, 0, 0,
                                    0, 0, 0, 0, 0x33, 0, 0, 0, 0,    0, 0, 0, 0x44, 0, 0, 0, 0,    0, 0, 0};
  ASSERT_EQ(store.size(), sizeof wanted);
  EXPECT_EQ(std::memcmp(store.data(), wanted, sizeof wanted), 0);
  const Bytes hello = EncodeShmMessage(Hello());
  ASSERT_EQ(hello.size(), 280);
  EXPECT_EQ(std::memcmp(hello.data() + 24, "secret", 7), 0);
  EXPECT_EQ(std::memcmp(hello.data() + 152, "chat-1", 7), 0);
  EXPECT_EQ(EncodeShmMessage(ShmRenew{7}).size(), 16);
}

TEST(ShmMessageTest, EveryOtherLengthIsRefused) {
  const ShmPiece piece = {0, 4096};
  const std::vector<Bytes> messages = {EncodeShmMessage(Hello()),
                                       EncodeShmMessage(ShmGrant{9, 4096, 1, 1}, std::span(&piece, 1)),
                                       EncodeShmMessage(ShmStore{1, 2, 3, 4}), EncodeShmMessage(ShmRenew{7})};
  for (const Bytes& message : messages) {
    ASSERT_TRUE(ParseShmMessage(message).ok());
    for (size_t size = 0; size < message.size() + 40; ++size) {
      if (size == message.size()) continue;
      Bytes other = message;
      other.resize(size);
      EXPECT_EQ(ParseCode(other), absl::StatusCode::kInvalidArgument) << size;
      const uint32_t claimed = size;  // also where the header agrees
      if (size >= sizeof(WireHeader)) std::memcpy(other.data() + 4, &claimed, sizeof claimed);
      EXPECT_EQ(ParseCode(other), absl::StatusCode::kInvalidArgument) << size;
    }
  }
}

TEST(ShmMessageTest, FieldsThatMeanNothingAreRefused) {
  Bytes version = EncodeShmMessage(ShmRenew{7});
  version[2] = std::byte{kShmVersion - 1};
  EXPECT_EQ(ParseCode(version), absl::StatusCode::kInvalidArgument);
  Bytes kind = EncodeShmMessage(ShmRenew{7});
  for (const int unknown : {0, 10, 255}) {
    kind[0] = static_cast<std::byte>(unknown);
    EXPECT_EQ(ParseCode(kind), absl::StatusCode::kInvalidArgument) << unknown;
  }
  for (const int64_t staging : {int64_t{0}, int64_t{-1}, kMaxStagingBytes + 1}) {
    ShmHello hello = Hello();
    hello.staging_bytes = staging;
    EXPECT_EQ(ParseCode(EncodeShmMessage(hello)), absl::StatusCode::kInvalidArgument) << staging;
  }
  ShmHello open_ended = Hello();
  open_ended.capability[kMaxWireText - 1] = 'x';
  EXPECT_EQ(ParseCode(EncodeShmMessage(open_ended)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseCode(EncodeShmMessage(ShmRevoke{-1})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseCode(EncodeShmMessage(ShmRenew{-1})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseCode(EncodeShmMessage(ShmRefuse{static_cast<LeaseRefusal>(3)})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseCode(EncodeShmMessage(ShmGrant{9, 4096, 1, 0})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseCode(EncodeShmMessage(ShmGrant{9, 4096, 1, INT32_MAX})), absl::StatusCode::kInvalidArgument);
  const std::vector<ShmPiece> many(kMaxShmPieces + 1, {0, 4096});
  EXPECT_EQ(ParseCode(EncodeShmMessage(ShmGrant{9, 4096, 1, kMaxShmPieces + 1}, many)),
            absl::StatusCode::kInvalidArgument);
}

TEST(ShmMessageTest, AFullTextFieldNeedsNoZero) {
  ShmHello hello = Hello();
  SetWireText(hello.capability, std::string(kMaxWireText, 'c'));
  const auto parsed = ParseShmMessage(EncodeShmMessage(hello));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(TextOf(std::get<ShmHello>(*parsed).capability), std::string(kMaxWireText, 'c'));
}

TEST(ShmMessageTest, StoresStayInsideWithoutWrapping) {
  const auto ok = [](int64_t offset, int64_t bytes, int64_t staging) {
    return CheckShmStore({1, offset, bytes, staging}, 1000, 100).ok();
  };
  EXPECT_TRUE(ok(0, 100, 0));
  EXPECT_TRUE(ok(900, 100, 0));
  EXPECT_TRUE(ok(999, 1, 99));
  EXPECT_FALSE(ok(901, 100, 0));
  EXPECT_FALSE(ok(0, 100, 1));
  EXPECT_FALSE(ok(0, 101, 0));
  EXPECT_FALSE(ok(INT64_MAX, 1, 0));
  EXPECT_FALSE(ok(0, 1, INT64_MAX));
  EXPECT_FALSE(ok(1, INT64_MAX, 1));
}

}  // namespace
}  // namespace swiftcache::engine::transport
