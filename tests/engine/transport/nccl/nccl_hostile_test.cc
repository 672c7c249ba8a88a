// SPDX-License-Identifier: Apache-2.0
// Peers that speak as no engine does: their channel is closed, and nothing else happens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/nccl/nccl_trial.h"
#include "tests/engine/transport/nccl/nccl_harness.h"

namespace swiftcache::engine::transport::nccl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// One end of a channel, by hand.
class RawPeer {
 public:
  explicit RawPeer(std::shared_ptr<ShmSocket> socket) : socket_(std::move(socket)) {}
  void Send(const std::vector<std::byte>& message) { (void)socket_->Send(message); }
  /// The next message; nothing: the end.
  std::optional<NcclMessage> Next() {
    ShmDatagram datagram;
    ShmSocket::Got got = ShmSocket::Got::kNothing;
    EXPECT_TRUE(Eventually([&] {
      got = socket_->Receive(datagram, kMaxNcclMessageBytes);
      return got != ShmSocket::Got::kNothing;
    }));
    if (got != ShmSocket::Got::kDatagram) return std::nullopt;
    auto message = ParseNcclMessage(datagram.bytes);
    EXPECT_TRUE(message.ok()) << message.status();
    return *std::move(message);
  }
  template <typename Message>
  Message Await() {
    for (;;) {
      const std::optional<NcclMessage> message = Next();
      if (!message) {
        ADD_FAILURE() << "the channel ended";
        return {};
      }
      if (const auto* wanted = std::get_if<Message>(&*message)) return *wanted;
    }
  }
  bool IsClosed() {
    while (Next()) {
    }
    return true;
  }

 private:
  std::shared_ptr<ShmSocket> socket_;
};

// One end of a communicator, likewise.
class RawRank {
 public:
  explicit RawRank(int rank) : rank_(rank) {}
  ~RawRank() {
    if (comm_ == NcclComm{}) return;
    nccl_.Abort(comm_);
    driver_.DestroyStream(stream_);
  }
  const NcclUniqueId& id() const { return id_; }
  /// As far as its trial goes.
  void Form(const NcclUniqueId& id) {
    comm_ = nccl_.Init(id, rank_).value();
    EXPECT_TRUE(Eventually([&] { return *nccl_.Settled(comm_); }));
    stream_ = driver_.CreateStream().value();
    NcclTrial trial(nccl_, driver_, rank_);
    EXPECT_TRUE(Eventually([&] { return *nccl_.Settled(comm_) && *trial.Advance(comm_, stream_); }));
  }
  void Give(NcclDirection direction, int64_t bytes) {
    const NcclRun run = {backend::cuda::ToNumber(arena_->base()), bytes};
    ASSERT_TRUE(nccl_.Transfer(comm_, direction, 1 - rank_, {&run, 1}, stream_).ok());
    EXPECT_TRUE(Eventually([&] { return *nccl_.Settled(comm_); }));
  }

 private:
  const int rank_;
  FakeCudaDriver driver_;
  FakeNccl nccl_{driver_};
  const NcclUniqueId id_ = nccl_.CreateUniqueId().value();
  const std::unique_ptr<backend::cuda::CudaArena> arena_ =
      backend::cuda::MakeArena(driver_, {.bytes = kNcclArenaBytes, .block_bytes = backend::cuda::kUnit});
  NcclComm comm_{};
  backend::cuda::Stream stream_{};
};

NcclBatchMessage Batch(int64_t batch, uint64_t number, int64_t lease, NcclPiece piece,
                       NcclKind kind = NcclKind::kLoad) {
  return {.head = {.batch = batch, .number = number, .kind = kind, .layers = 1, .num_leases = 1, .num_pieces = 1},
          .leases = {lease},
          .pieces = {piece}};
}

// A donor, an honest borrower of one lease, and a hostile one of another.
class HostileBorrowerTest : public testing::Test {
 protected:
  HostileBorrowerTest() {
    donor_.Fill(0, Pattern(kNcclLeaseBytes, 1));
    (void)Lend(donor_, honest_, kLease, 0);
    donor_.Fill(kNcclLeaseBytes, Pattern(kNcclLeaseBytes, 2));
    (void)Granted(donor_, honest_, kOther, kNcclLeaseBytes);
  }
  ~HostileBorrowerTest() override {
    EXPECT_THAT(honest_.LoadNow(kLease, 0, kPiece, 0), IsEmpty()) << "others are not concerned";
    EXPECT_EQ(donor_.Read(kNcclLeaseBytes, kNcclLeaseBytes), Pattern(kNcclLeaseBytes, 2)) << "nothing was written";
  }
  RawPeer Dial() { return RawPeer(ShmSocket::Connect(donor_.transport->channel()).value()); }
  std::vector<std::byte> Open(const char* capability) {
    NcclOpen open = {.lease = kOther.value(), .bytes = kNcclLeaseBytes};
    SetWireText(open.capability, capability);
    SetWireText(open.instance, honest_.instance);
    return EncodeNcclMessage(open);
  }
  // One that has shown the capability.
  RawPeer Opened() {
    RawPeer peer = Dial();
    peer.Send(Open(kCapability));
    EXPECT_EQ(peer.Await<NcclGranted>().lease, kOther.value());
    return peer;
  }

  ShmFolder folder_;
  NcclNode donor_{folder_, "donor"}, honest_{folder_, "honest"};
};

TEST_F(HostileBorrowerTest, AStrangerHasNoCommunicatorAndNoBatch) {
  for (const std::vector<std::byte>& message :
       {EncodeNcclMessage(NcclJoin{1, {}}), EncodeNcclBatch(Batch(1, 0, kLease.value(), {.bytes = 1})),
        EncodeNcclMessage(NcclRelease{kLease.value()}), std::vector<std::byte>(100)}) {
    RawPeer peer = Dial();
    peer.Send(message);
    EXPECT_TRUE(peer.IsClosed());
  }
  EXPECT_EQ(donor_.nccl.num_made(), 1);
  EXPECT_TRUE(HoldsNow(donor_.events, [&] { return donor_.events.released.empty(); }));
}

TEST_F(HostileBorrowerTest, WhoeverGuessesIsSentAway) {
  RawPeer peer = Dial();
  for (int i = 0; i < 20; ++i) peer.Send(Open("guess"));
  EXPECT_TRUE(peer.IsClosed());
}

TEST_F(HostileBorrowerTest, MessagesOutOfTurnEndTheChannel) {
  const std::vector<std::vector<std::byte>> messages = {
      EncodeNcclMessage(NcclJoin{0, {}}),
      EncodeNcclMessage(NcclGranted{kOther.value(), 1}),
      EncodeNcclBatch(Batch(0, 0, kOther.value(), {.bytes = 1})),
      EncodeNcclBatch(Batch(1, 9, kOther.value(), {.bytes = 1})),
      EncodeNcclBatch(Batch(1, 0, kOther.value(), {.bytes = 1}, NcclKind::kStore)),  // of no communicator
      EncodeNcclAnswer({.batch = 1, .leases = {1}})};
  for (const std::vector<std::byte>& message : messages) {
    RawPeer peer = Opened();
    peer.Send(message);
    EXPECT_TRUE(peer.IsClosed());
    EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kOther); }));
  }
}

TEST_F(HostileBorrowerTest, APieceThatLeavesItsLeaseEndsTheChannel) {
  RawPeer peer = Opened();
  peer.Send(EncodeNcclMessage(NcclJoin{1, {}}));
  peer.Send(EncodeNcclBatch(Batch(1, 1, kOther.value(), {.offset = kNcclLeaseBytes, .bytes = 1}, NcclKind::kStore)));
  EXPECT_TRUE(peer.IsClosed());
}

TEST_F(HostileBorrowerTest, ALeaseOfAnotherIsRefusedWithoutAByte) {
  RawPeer peer = Opened();
  peer.Send(EncodeNcclMessage(NcclJoin{1, {}}));
  const int64_t groups = donor_.nccl.num_groups();
  for (const NcclKind kind : {NcclKind::kLoad, NcclKind::kStore}) {
    peer.Send(EncodeNcclBatch(Batch(static_cast<int64_t>(kind), 1, kLease.value(), {.bytes = 1}, kind)));
    EXPECT_THAT(peer.Await<NcclAnswer>().leases, ElementsAre(0));
  }
  EXPECT_EQ(donor_.nccl.num_groups(), groups);
}

TEST_F(HostileBorrowerTest, WhatItDoesNotSendHoldsUpNoFence) {
  RawPeer peer = Opened();
  peer.Send(EncodeNcclMessage(NcclJoin{1, {}}));  // and never joins itself
  peer.Send(EncodeNcclBatch(Batch(1, 1, kOther.value(), {.bytes = 1}, NcclKind::kStore)));
  EXPECT_THAT(peer.Await<NcclAnswer>().leases, ElementsAre(1));
  const absl::Time begin = absl::Now();
  donor_.transport->Fence(kOther);
  EXPECT_LT(absl::Now() - begin, Transport::kReadPatience) << "its owner has it back";
  EXPECT_EQ(peer.Await<NcclEnded>().lease, kOther.value());
}

TEST_F(HostileBorrowerTest, WhatItSendsIsNotWrittenOnceItsLeaseIsOpenElsewhere) {
  RawRank rank(0);
  RawPeer peer = Opened();
  peer.Send(EncodeNcclMessage(NcclJoin{1, rank.id()}));
  rank.Form(rank.id());
  peer.Send(EncodeNcclBatch(Batch(1, 1, kOther.value(), {.bytes = kPiece}, NcclKind::kStore)));
  EXPECT_THAT(peer.Await<NcclAnswer>().leases, ElementsAre(1));
  peer.Send(EncodeNcclMessage(NcclClose{kOther.value()}));
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kOther); }));
  RawPeer next = Opened();
  rank.Give(NcclDirection::kSend, kPiece);
  const auto done = peer.Await<NcclAnswer>();
  EXPECT_TRUE(done.done);
  EXPECT_THAT(done.leases, ElementsAre(0));
}

// The donor's link is busy meanwhile, and joins only the last one.
TEST_F(HostileBorrowerTest, WhatComesByACommunicatorThatIsNeverJoinedEndsWithTheNext) {
  RawRank rank(0);
  RawPeer peer = Opened();
  const auto join = [&](uint8_t number) {
    NcclJoin message = {.number = number};
    message.id.back() = std::byte{number};
    peer.Send(EncodeNcclMessage(message));
  };
  absl::Notification aborts, hold;
  donor_.nccl.BeforeAborts([&] {
    if (!aborts.HasBeenNotified()) aborts.Notify();
    hold.WaitForNotification();
  });
  join(1);
  EXPECT_TRUE(Eventually([&] { return donor_.nccl.num_made() == 2; }));  // beside the honest one's
  join(2);
  aborts.WaitForNotification();
  join(3);
  peer.Send(EncodeNcclBatch(Batch(1, 3, kOther.value(), {.bytes = 1}, NcclKind::kStore)));
  peer.Send(EncodeNcclMessage(NcclJoin{4, rank.id()}));
  EXPECT_THAT(peer.Await<NcclAnswer>().leases, ElementsAre(1));
  peer.Send(EncodeNcclMessage(NcclRenew{kOther.value(), 0}));
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.renewals.contains(kOther); }));
  hold.Notify();
  rank.Form(rank.id());
  peer.Send(EncodeNcclBatch(Batch(2, 4, kOther.value(), {.bytes = kPiece})));
  rank.Give(NcclDirection::kReceive, kPiece);
  EXPECT_FALSE(peer.Await<NcclAnswer>().done);
  const auto done = peer.Await<NcclAnswer>();
  EXPECT_TRUE(done.done);
  EXPECT_EQ(done.batch, 2);
  donor_.nccl.BeforeAborts(nullptr);
}

TEST_F(HostileBorrowerTest, AFloodEndsTheChannel) {
  RawPeer peer = Opened();
  for (int i = 0; i < 2 * MessageLimit::kMostASecond; ++i) {
    peer.Send(EncodeNcclMessage(NcclRenew{kOther.value(), 0}));
  }
  EXPECT_TRUE(peer.IsClosed());
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kOther); }));
  EXPECT_TRUE(HoldsNow(donor_.events, [&] {
    const auto renewals = donor_.events.renewals.find(kOther);
    return renewals == donor_.events.renewals.end() || renewals->second <= MessageLimit::kMostASecond;
  }));
}

TEST_F(HostileBorrowerTest, MoreBatchesThanMayBeUnansweredEndTheChannel) {
  RawPeer peer = Opened();
  peer.Send(EncodeNcclMessage(NcclJoin{1, {}}));
  for (int64_t batch = 1; batch <= static_cast<int64_t>(kMaxNcclBatches) + 1; ++batch) {
    peer.Send(EncodeNcclBatch(Batch(batch, 1, kOther.value(), {.bytes = 1})));
  }
  EXPECT_TRUE(peer.IsClosed());
}

// A donor by hand, whose lease an engine opens.
class HostileDonorTest : public testing::Test {
 protected:
  HostileDonorTest() : listener_(ShmListener::Create(folder_.path(), "donor").value()) {
    borrower_.transport->Open({.lease = kLease,
                               .channel = listener_.path(),
                               .capability = kCapability,
                               .bytes = kNcclLeaseBytes,
                               .epoch = kv::Epoch(3),
                               .store_bytes = kPiece});
    std::shared_ptr<ShmSocket> socket;
    EXPECT_TRUE(Eventually([&] { return listener_.Accept(socket) == ShmListener::Got::kSocket; }));
    peer_.emplace(socket);
    EXPECT_EQ(peer_->Await<NcclOpen>().lease, kLease.value());
  }
  // Grants it, and joins as far as a communicator and its trial go.
  void Grant() {
    peer_->Send(EncodeNcclMessage(NcclGranted{kLease.value(), 3}));
    join_ = peer_->Await<NcclJoin>();
    rank_.Form(join_.id);
    EXPECT_TRUE(borrower_.events.Opening(kLease).ok());
  }
  void ExpectGone() {
    EXPECT_TRUE(peer_->IsClosed());
    EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.donor_gone.contains(kLease); }));
  }

  ShmFolder folder_;
  ShmListener listener_;
  NcclNode borrower_{folder_, "borrower"};
  RawRank rank_{1};
  NcclJoin join_ = {};
  std::optional<RawPeer> peer_;
};

TEST_F(HostileDonorTest, AGrantOfAnotherEpochIsNone) {
  peer_->Send(EncodeNcclMessage(NcclGranted{kLease.value(), 4}));
  EXPECT_FALSE(borrower_.events.Opening(kLease).ok());
  EXPECT_EQ(borrower_.nccl.num_made(), 0);
}

TEST_F(HostileDonorTest, AnswersOutOfTurnEndTheChannelAndTheLoad) {
  Grant();
  const Ticket load = borrower_.Load(kLease, 0, kPiece, 0);
  const int64_t batch = peer_->Await<NcclBatchMessage>().head.batch;
  peer_->Send(EncodeNcclAnswer({.done = true, .batch = batch, .leases = {1}}));  // nothing was accepted yet
  EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  ExpectGone();
}

TEST_F(HostileDonorTest, AStoreIsCutToWhatItTakesAtOnce) {
  Grant();
  constexpr int64_t kBytes = 2 * kMaxNcclStoreBytes + 5;
  borrower_.transport->Open({.lease = kOther,
                             .channel = listener_.path(),
                             .capability = kCapability,
                             .bytes = kBytes + 3,
                             .epoch = kv::Epoch(3),
                             .store_bytes = kBytes});
  EXPECT_EQ(peer_->Await<NcclOpen>().lease, kOther.value());
  peer_->Send(EncodeNcclMessage(NcclGranted{kOther.value(), 3}));
  EXPECT_TRUE(borrower_.events.Opening(kOther).ok());
  const Ticket store = borrower_.Store(kOther, 3, 0, kBytes);
  const auto batch = peer_->Await<NcclBatchMessage>();
  ASSERT_EQ(batch.pieces.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(batch.pieces[i].offset, 3 + i * kMaxNcclStoreBytes);
    EXPECT_EQ(batch.pieces[i].bytes, i == 2 ? 5 : kMaxNcclStoreBytes);
  }
  for (const bool done : {false, true}) {
    peer_->Send(EncodeNcclAnswer({.done = done, .batch = batch.head.batch, .leases = {0}}));
  }
  EXPECT_EQ(borrower_.events.Fate(store).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HostileDonorTest, AnAnswerAboutOtherLeasesEndsTheChannel) {
  Grant();
  const Ticket load = borrower_.Load(kLease, 0, kPiece, 0);
  const int64_t batch = peer_->Await<NcclBatchMessage>().head.batch;
  peer_->Send(EncodeNcclAnswer({.batch = batch, .leases = {1, 1}}));
  EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  ExpectGone();
}

TEST_F(HostileDonorTest, OneThatAcceptsAndSendsNothingCostsTheReadersPatience) {
  Grant();
  const absl::Time begin = absl::Now();
  const Ticket load = borrower_.Load(kLease, 0, kPiece, 0);
  const int64_t batch = peer_->Await<NcclBatchMessage>().head.batch;
  peer_->Send(EncodeNcclAnswer({.batch = batch, .leases = {1}}));
  peer_->Send(EncodeNcclAnswer({.done = true, .batch = batch, .leases = {1}}));
  EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  EXPECT_LT(absl::Now() - begin, 10 * Transport::kReadPatience);
  EXPECT_EQ(peer_->Await<NcclBroken>().number, join_.number);
}

TEST_F(HostileDonorTest, OneThatSendsOtherSizesCostsTheReadersPatience) {
  Grant();
  const Ticket load = borrower_.Load(kLease, 0, kPiece, 0);
  const int64_t batch = peer_->Await<NcclBatchMessage>().head.batch;
  peer_->Send(EncodeNcclAnswer({.batch = batch, .leases = {1}}));
  rank_.Give(NcclDirection::kSend, kPiece / 2);
  EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
  borrower_.nccl.ForgetMisuse();
}

// Of what is asked for before its lease is heard to have ended nothing comes any more, and nobody waits for it.
TEST_F(HostileDonorTest, AStreamThatIsBegunWhileItDiesIsNotWaitedFor) {
  Grant();
  InterruptedClock::Next([&] {  // the lease is found to be open, and the link stops before the stream is given to it
    peer_.reset();
    EXPECT_TRUE(Eventually([&] { return borrower_.nccl.num_communicators() == 0; }));
  });
  const auto stream = borrower_.transport->BeginStream(
      {.sources = {{kLease, 0, {borrower_.At(0), borrower_.At(kPiece)}}}, .num_layers = 2, .slice_bytes = kPiece}, {});
  EXPECT_EQ(borrower_.nccl.num_groups(), 0);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const backend::Fence arrived = stream->Arrived(layer);
    ASSERT_TRUE(arrived.Passed()) << "a step would wait for ever";
    arrived.Wait();
    EXPECT_EQ(arrived.state()->stands_for(), nullptr);
    stream->Release(layer, {});
  }
  EXPECT_THAT(stream->End(), ElementsAre(kLease));
}

// Nor does its end wait for the thread that tells, which hears nothing here and ends with the transport.
TEST_F(HostileDonorTest, ALoadThatIsBegunWhileItDiesIsOverBeforeAnythingIsTold) {
  Grant();
  auto hold = borrower_.events.Hold();
  (void)borrower_.Store(kOther, 0, 0, kPiece);  // of no lease: the thread waits to tell that it is refused
  InterruptedClock::Next([&] {
    peer_.reset();
    EXPECT_TRUE(Eventually([&] { return borrower_.nccl.num_communicators() == 0; }));
  });
  const Ticket load = borrower_.Load(kLease, 0, kPiece, 0);
  absl::Notification awaited;
  std::thread reader([&] {
    EXPECT_THAT(borrower_.transport->Await(load), ElementsAre(kLease));
    awaited.Notify();
  });
  EXPECT_TRUE(awaited.WaitForNotificationWithTimeout(RecordingTransportEvents::kPatience));
  hold.reset();
  reader.join();
}

TEST_F(HostileDonorTest, OneThatReadsNothingIsGivenUpBeforeItCostsMuchMemory) {
  Grant();
  constexpr int64_t kMessages = ShmSocket::kMostUnsentBytes / sizeof(NcclRenew);  // more than may wait
  for (int64_t i = 0; i < kMessages; ++i) borrower_.transport->SendRenewal(kLease, i);
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.donor_gone.contains(kLease); }));
}

TEST_F(HostileDonorTest, WhatItSaysOfLeasesThatAreNotItsOwnIsNotHeard) {
  Grant();
  peer_->Send(EncodeNcclMessage(NcclEnded{kOther.value(), 3}));
  peer_->Send(EncodeNcclMessage(NcclEnded{kLease.value(), 2}));  // of an earlier grant
  peer_->Send(EncodeNcclMessage(NcclRevoke{kOther.value(), 1}));
  peer_->Send(EncodeNcclMessage(NcclRenewed{kLease.value()}));
  EXPECT_TRUE(borrower_.events.WaitFor([&] { return borrower_.events.renewed.contains(kLease); }));
  EXPECT_TRUE(HoldsNow(borrower_.events,
                       [&] { return borrower_.events.donor_gone.empty() && borrower_.events.revoked.empty(); }));
}

TEST_F(HostileDonorTest, AFloodEndsTheChannel) {
  Grant();
  for (int i = 0; i < 2 * MessageLimit::kMostASecond; ++i) {
    peer_->Send(EncodeNcclMessage(NcclRenewed{kLease.value()}));
  }
  ExpectGone();
}

}  // namespace
}  // namespace swiftcache::engine::transport::nccl
