// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_message.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <limits>
#include <random>
#include <vector>

#include "engine/transport/shm_socket.h"

namespace swiftcache::engine::transport::nccl {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

NcclBatchMessage Batch(NcclKind kind, uint32_t layers, int64_t stride, std::vector<NcclPiece> pieces) {
  NcclBatchMessage message = {
      .head = {.batch = 5, .number = 2, .layer_stride = stride, .kind = kind, .layers = layers}};
  message.leases = {7, 8};
  message.pieces = std::move(pieces);
  message.head.num_leases = 2;
  message.head.num_pieces = static_cast<uint32_t>(message.pieces.size());
  return message;
}

absl::StatusCode CodeOf(const std::vector<std::byte>& bytes) { return ParseNcclMessage(bytes).status().code(); }

TEST(NcclMessageTest, ABatchIsReadAsItWasWritten) {
  auto batch = Batch(NcclKind::kStream, 3, 64, {{.offset = 128, .lease = 1, .first_is_there = 1, .bytes = 32}});
  batch.head.first_again = 1;
  const auto parsed = ParseNcclMessage(EncodeNcclBatch(batch));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& read = std::get<NcclBatchMessage>(*parsed);
  EXPECT_EQ(read.head.batch, 5);
  EXPECT_EQ(read.head.number, 2u);
  EXPECT_EQ(read.head.layers, 3u);
  EXPECT_EQ(read.leases, batch.leases);
  ASSERT_EQ(read.pieces.size(), 1u);
  EXPECT_EQ(read.pieces[0].offset, 128);
  EXPECT_EQ(read.pieces[0].lease, 1u);
  EXPECT_EQ(read.pieces[0].bytes, 32u);
  EXPECT_EQ(read.pieces[0].first_is_there, 1u);
  EXPECT_EQ(read.head.first_again, 1u);
  EXPECT_EQ(read.pieces[0].bytes_of_all(read.head), 3 * 32) << "two of three layers, and the first one behind them";
}

TEST(NcclMessageTest, AnAnswerIsReadAsItWasWritten) {
  for (const bool done : {false, true}) {
    const auto parsed = ParseNcclMessage(EncodeNcclAnswer({.done = done, .batch = 9, .leases = {1, 0, 1}}));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(std::get<NcclAnswer>(*parsed).done, done);
    EXPECT_EQ(std::get<NcclAnswer>(*parsed).leases, (std::vector<uint8_t>{1, 0, 1}));
  }
}

TEST(NcclMessageTest, MessagesOfEveryKindAreRefusedAtAnyOtherLength) {
  NcclOpen open = {.lease = 7, .bytes = 64};
  SetWireText(open.capability, "secret");
  SetWireText(open.instance, "me");
  const std::vector<std::vector<std::byte>> all = {
      EncodeNcclMessage(open),
      EncodeNcclMessage(NcclGranted{7, 1}),
      EncodeNcclMessage(NcclRefused{.lease = 7, .reason = LeaseRefusal::kNotGranted}),
      EncodeNcclMessage(NcclRevoke{7, 1}),
      EncodeNcclMessage(NcclRenew{7, 8}),
      EncodeNcclMessage(NcclRelease{7}),
      EncodeNcclMessage(NcclClose{7}),
      EncodeNcclMessage(NcclRenewed{7}),
      EncodeNcclMessage(NcclEnded{7, 1}),
      EncodeNcclMessage(NcclJoin{1, {}}),
      EncodeNcclMessage(NcclBroken{1}),
      EncodeNcclBatch(Batch(NcclKind::kLoad, 1, 0, {{.bytes = 1}})),
      EncodeNcclAnswer({.leases = {1}})};
  for (const std::vector<std::byte>& message : all) {
    EXPECT_TRUE(ParseNcclMessage(message).ok()) << ParseNcclMessage(message).status();
    for (size_t length = 0; length < message.size() + 8; ++length) {
      if (length == message.size()) continue;
      std::vector<std::byte> other = message;
      other.resize(length);
      EXPECT_EQ(CodeOf(other), absl::StatusCode::kInvalidArgument);
      if (length < sizeof(WireHeader)) continue;
      reinterpret_cast<WireHeader*>(other.data())->bytes = static_cast<uint32_t>(length);
      EXPECT_EQ(CodeOf(other), absl::StatusCode::kInvalidArgument) << length;
    }
  }
}

TEST(NcclMessageTest, NumbersThatMeanNothingAreRefused) {
  const NcclPiece good = {.offset = 0, .lease = 0, .bytes = 1};
  std::vector<NcclBatchMessage> bad;
  bad.push_back(Batch(NcclKind{0}, 1, 0, {good}));
  bad.push_back(Batch(NcclKind::kLoad, 2, 0, {good}));   // layers are a stream's
  bad.push_back(Batch(NcclKind::kStore, 1, 8, {good}));  // and so is what is between them
  bad.push_back(Batch(NcclKind::kStream, 0, 8, {good}));
  bad.push_back(Batch(NcclKind::kStream, kMaxNcclLayers + 1, 8, {good}));
  bad.push_back(Batch(NcclKind::kStream, 2, -8, {good}));
  bad.push_back(Batch(NcclKind::kStream, kMaxNcclLayers, 8, std::vector<NcclPiece>(1025, good)));
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, {}));
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, std::vector<NcclPiece>(kMaxNcclPieces + 1, good)));
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, {{.offset = -1, .lease = 0, .bytes = 1}}));
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, {{.offset = 0, .lease = 2, .bytes = 1}}));
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, {{.offset = 0, .lease = 0, .bytes = 0}}));
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, {{.offset = 0, .lease = 0, .bytes = kMaxNcclPieceBytes + 1}}));
  bad.push_back(Batch(NcclKind::kStore, 1, 0, {{.offset = 0, .lease = 0, .bytes = kMaxNcclStoreBytes + 1}}));
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, {{.offset = 0, .lease = 0, .first_is_there = 1, .bytes = 1}}));
  bad.push_back(Batch(NcclKind::kStream, 2, 8, {{.offset = 0, .lease = 0, .first_is_there = 2, .bytes = 1}}));
  for (const auto& [layers, again] : {std::pair(1u, 1u), std::pair(2u, 2u)}) {
    bad.push_back(Batch(NcclKind::kStream, layers, 8, {good}));
    bad.back().head.first_again = again;
  }
  bad.push_back(Batch(NcclKind::kLoad, 1, 0, {good}));
  bad.back().head.zero = 1;
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(CodeOf(EncodeNcclBatch(bad[i])), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(CodeOf(EncodeNcclMessage(NcclRevoke{7, -1})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(EncodeNcclMessage(NcclRenew{7, -1})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(EncodeNcclMessage(NcclRefused{.lease = 7, .reason = LeaseRefusal{9}})),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(EncodeNcclMessage(NcclRefused{.lease = 7, .reason = LeaseRefusal::kNotGranted, .zero = 1})),
            absl::StatusCode::kInvalidArgument);
  std::vector<std::byte> answer = EncodeNcclAnswer({.leases = {1}});
  answer[20] = std::byte{1};
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kInvalidArgument);
  NcclOpen open = {.lease = 7, .bytes = 64};
  open.capability[5] = 'x';  // after the text's end
  EXPECT_EQ(CodeOf(EncodeNcclMessage(open)), absl::StatusCode::kInvalidArgument);
}

TEST(NcclMessageTest, PiecesStayInTheirLeaseWithAllTheirLayers) {
  const std::vector<int64_t> leases = {100, 0};  // the second is unknown here
  const auto check = [&](uint32_t layers, int64_t stride, NcclPiece piece) {
    return CheckNcclPieces(Batch(NcclKind::kStream, layers, stride, {piece}), leases).ok();
  };
  EXPECT_TRUE(check(1, 0, {.offset = 60, .lease = 0, .bytes = 40}));
  EXPECT_FALSE(check(1, 0, {.offset = 61, .lease = 0, .bytes = 40}));
  EXPECT_FALSE(check(1, 0, {.offset = 0, .lease = 0, .bytes = 101}));
  EXPECT_TRUE(check(3, 40, {.offset = 0, .lease = 0, .bytes = 20}));
  EXPECT_FALSE(check(3, 41, {.offset = 0, .lease = 0, .bytes = 20}));
  EXPECT_TRUE(check(1, kLargest, {.offset = 0, .lease = 0, .bytes = 20})) << "one layer has no next";
  EXPECT_FALSE(check(2, kLargest, {.offset = 0, .lease = 0, .bytes = 20}));
  EXPECT_FALSE(check(kMaxNcclLayers, kLargest, {.offset = kLargest, .lease = 0, .bytes = 20}));
  EXPECT_TRUE(check(2, kLargest, {.offset = kLargest, .lease = 1, .bytes = 20})) << "it is refused as a whole";
}

TEST(NcclMessageTest, NoiseIsRefusedOrMeansSomething) {
  std::mt19937_64 random(7);
  std::vector<std::byte> message = EncodeNcclBatch(Batch(NcclKind::kLoad, 1, 0, {{.bytes = 1}, {.bytes = 2}}));
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> noisy = message;
    for (int n = 0; n < 3; ++n) noisy[random() % noisy.size()] = static_cast<std::byte>(random());
    const auto parsed = ParseNcclMessage(noisy);
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    } else if (const auto* batch = std::get_if<NcclBatchMessage>(&*parsed)) {
      for (const NcclPiece& piece : batch->pieces) EXPECT_LT(piece.lease, batch->leases.size());
    }
  }
}

TEST(NcclMessageTest, TheLongestFitsIntoADatagram) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  ShmSocket from{memory::UniqueFd(fds[0])}, to{memory::UniqueFd(fds[1])};
  auto batch = Batch(NcclKind::kLoad, 1, 0, std::vector<NcclPiece>(kMaxNcclPieces, {.bytes = 1}));
  batch.leases.resize(kMaxNcclLeases);
  batch.head.num_leases = kMaxNcclLeases;
  const std::vector<std::byte> message = EncodeNcclBatch(batch);
  EXPECT_EQ(static_cast<int64_t>(message.size()), kMaxNcclMessageBytes);
  ASSERT_TRUE(from.Send(message));
  ShmDatagram datagram;
  ASSERT_EQ(to.Receive(datagram, kMaxNcclMessageBytes), ShmSocket::Got::kDatagram);
  EXPECT_TRUE(ParseNcclMessage(datagram.bytes).ok());
  ASSERT_TRUE(from.Send(message));
  EXPECT_EQ(to.Receive(datagram, kMaxNcclMessageBytes - 1), ShmSocket::Got::kTooLong);
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
