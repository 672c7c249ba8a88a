// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/transport/shm_listener.h"
#include "engine/transport/shm_message.h"
#include "engine/transport/shm_socket.h"
#include "tests/engine/transport/staging_memory.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {
namespace {

using kv::LeaseId;
using memory::UniqueFd;

// A donor that lies: the borrower hears an error or the end, and its own stores fail.
class LyingDonor {
 public:
  explicit LyingDonor(const ShmFolder& folder) : listener_(ShmListener::Create(folder.path(), "liar").value()) {}
  std::string channel() const { return listener_.path(); }
  /// The socket of the borrower who has said HELLO.
  std::shared_ptr<ShmSocket> Meet() {
    std::shared_ptr<ShmSocket> socket;
    while (listener_.Accept(socket) != ShmListener::Got::kSocket) absl::SleepFor(absl::Microseconds(200));
    ShmDatagram hello;
    while (socket->Receive(hello) == ShmSocket::Got::kNothing) absl::SleepFor(absl::Microseconds(200));
    return socket;
  }

 private:
  ShmListener listener_;
};

OpenSpec SpecOf(LeaseId lease, const LyingDonor& donor) {
  return {.lease = lease,
          .channel = donor.channel(),
          .capability = kCapability,
          .bytes = kMiB,
          .epoch = kv::Epoch(9),
          .store_bytes = 4096};
}
constexpr ShmGrant kRight = {.epoch = 9, .bytes = kMiB, .word = 3, .num_pieces = 1};

// The borrower opens kLease, and has a grant as it should be; the socket it is on.
std::shared_ptr<ShmSocket> Grant(LyingDonor& donor, const GoodStaging& good, GoodStaging& words, Node& borrower) {
  reinterpret_cast<std::atomic<uint64_t>*>(words.memory.base())[kRight.word] = kRight.epoch;
  borrower.transport->Open(SpecOf(kLease, donor));
  std::shared_ptr<ShmSocket> socket = donor.Meet();
  const ShmPiece piece = {0, kMiB};
  const int fds[] = {words.fd.get(), good.fd.get()};
  socket->Send(EncodeShmMessage(kRight, std::span(&piece, 1)), fds);
  return socket;
}

TEST(ShmLyingDonorTest, GrantsThatCannotBeTrustedAreRefused) {
  ShmFolder folder;
  Node borrower(folder, {.name = "borrower"});
  LyingDonor liar(folder);
  GoodStaging good(kMiB), words(4096);
  const UniqueFd unsealed = PlainMemory(kMiB);
  const int64_t before = OpenDescriptors();
  struct Lie {
    ShmGrant grant;
    ShmPiece piece;
    std::vector<int> fds;
  };
  const int word = words.fd.get(), memory = good.fd.get();
  ShmGrant epoch = kRight, bytes = kRight, far_word = kRight, negative_word = kRight;
  epoch.epoch = 8;
  bytes.bytes = 2 * kMiB;
  far_word.word = 512;
  negative_word.word = -1;
  const Lie lies[] = {{epoch, {0, kMiB}, {word, memory}},
                      {bytes, {0, kMiB}, {word, memory}},
                      {far_word, {0, kMiB}, {word, memory}},
                      {negative_word, {0, kMiB}, {word, memory}},
                      {kRight, {4096, kMiB}, {word, memory}},
                      {kRight, {0, kMiB - 4096}, {word, memory}},
                      {kRight, {100, kMiB}, {word, memory}},
                      {kRight, {INT64_MAX / 4096 * 4096, kMiB}, {word, memory}},
                      {kRight, {0, INT64_MIN}, {word, memory}},
                      {kRight, {0, kMiB}, {word, unsealed.get()}},
                      {kRight, {0, kMiB}, {unsealed.get(), memory}},
                      {kRight, {0, kMiB}, {word}},
                      {kRight, {0, kMiB}, {word, memory, memory}}};
  int64_t id = 1;
  for (const Lie& lie : lies) {
    const OpenSpec spec = SpecOf(LeaseId(++id), liar);
    borrower.transport->Open(spec);
    const std::shared_ptr<ShmSocket> socket = liar.Meet();
    socket->Send(EncodeShmMessage(lie.grant, std::span(&lie.piece, 1)), lie.fds);
    EXPECT_EQ(borrower.events.Opening(spec.lease).status().code(), absl::StatusCode::kInvalidArgument) << id;
  }
  for (int64_t closed = 2; closed <= id; ++closed) borrower.transport->Close(LeaseId(closed));
  const absl::Time deadline = absl::Now() + RecordingTransportEvents::kPatience;
  while (OpenDescriptors() > before && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(OpenDescriptors(), before);
  borrower.transport->Stop();
  EXPECT_TRUE(borrower.events.donor_gone.empty()) << "that was told already";
}

// A donor that goes on listening.
TEST(ShmLyingDonorTest, NothingFollowsARelease) {
  ShmFolder folder;
  Node borrower(folder, {.name = "borrower", .link_latency = absl::Milliseconds(50)});
  LyingDonor donor(folder);
  GoodStaging good(kMiB), words(4096);
  const std::shared_ptr<ShmSocket> socket = Grant(donor, good, words, borrower);
  ASSERT_TRUE(borrower.events.Opening(kLease).ok());
  const std::vector<std::byte> block(4096);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 8; ++i) tickets.push_back(borrower.Store(kLease, 0, block.data(), 4096));
  absl::SleepFor(absl::Milliseconds(20));  // some are on the link
  borrower.transport->SendRelease(kLease);
  absl::SleepFor(absl::Milliseconds(100));  // and would have crossed it
  borrower.transport->Abandon(kLease);
  for (const Ticket ticket : tickets) EXPECT_FALSE(borrower.events.Fate(ticket).ok());
  borrower.transport->Close(kLease);
  std::vector<std::vector<std::byte>> heard;
  for (ShmDatagram datagram; socket->Receive(datagram) == ShmSocket::Got::kDatagram;) heard.push_back(datagram.bytes);
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.back(), EncodeShmMessage(ShmRelease{}));
}

TEST(ShmLyingDonorTest, AnswersToStoresThatWereNotMadeEndTheLease) {
  ShmFolder folder;
  Node borrower(folder, {.name = "borrower"});
  LyingDonor liar(folder);
  GoodStaging good(kMiB), words(4096);
  const std::shared_ptr<ShmSocket> socket = Grant(liar, good, words, borrower);
  ASSERT_TRUE(borrower.events.Opening(kLease).ok());
  const std::vector<std::byte> block(4096);
  const Ticket ticket = borrower.Store(kLease, 0, block.data(), 4096);
  socket->Send(EncodeShmMessage(ShmStored{ticket.value() + 1}));
  EXPECT_EQ(borrower.events.Fate(ticket).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(borrower.events.WaitFor([&] { return borrower.events.donor_gone.contains(kLease); }));
}

}  // namespace
}  // namespace swiftcache::engine::transport
