// SPDX-License-Identifier: Apache-2.0
// Peers that say what they must not. Whatever they do: their channel closes, the arena keeps its bytes, honest peers go
// on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/transport/shm_message.h"
#include "tests/engine/transport/raw_peer.h"
#include "tests/engine/transport/staging_memory.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"
#include "tests/fakes/random_seed.h"

namespace swiftcache::engine::transport {
namespace {

using kv::LeaseId;
using memory::UniqueFd;

class ShmHostileTest : public ::testing::Test {
 protected:
  ShmHostileTest()
      : donor_(folder_, {.name = "donor"}),
        honest_(folder_, {.name = "honest"}),
        spec_(Granted(donor_, {folder_, {.name = "borrower"}}, kLease, kMiB, kLeaseBytes, kStagingBytes)) {
    for (int64_t i = 0; i < kArenaBytes; i += 64) donor_.arena.base()[i] = std::byte{0x5a};
    before_.assign(donor_.arena.base(), donor_.arena.base() + kArenaBytes);
    Lend(donor_, honest_, LeaseId(1), 4 * kMiB, kMiB, 4096);
    ExpectUnharmed();  // after which both ends have closed what the opening brought
    descriptors_ = OpenDescriptors();
  }

  std::string channel() const { return donor_.transport->channel(); }

  // An honest lease works, and nothing but its block changed in the donor's arena.
  void ExpectUnharmed() {
    const std::vector<std::byte> block(4096, std::byte{0x77});
    ASSERT_EQ(honest_.events.Fate(honest_.Store(LeaseId(1), 8192, block.data(), 4096)), absl::OkStatus());
    std::copy(block.begin(), block.end(), before_.begin() + 4 * kMiB + 8192);
    EXPECT_EQ(std::memcmp(before_.data(), donor_.arena.base(), kArenaBytes), 0);
  }
  // All descriptors that came are closed again; the loop does so a moment after it cuts a channel.
  void ExpectNoDescriptorsLeft() {
    const absl::Time deadline = absl::Now() + RecordingTransportEvents::kPatience;
    while (OpenDescriptors() > descriptors_ && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(OpenDescriptors(), descriptors_);
  }

  ShmFolder folder_;
  Node donor_, honest_;
  OpenSpec spec_;
  std::vector<std::byte> before_;
  int64_t descriptors_ = 0;
};

TEST_F(ShmHostileTest, WhatABorrowerReceivesCannotBeWritten) {
  GoodStaging staging;
  RawPeer peer(channel());
  peer.SayHello(staging.fd);
  std::optional<ShmDatagram> grant = peer.Hear();
  ASSERT_TRUE(grant.has_value());
  ASSERT_EQ(grant->fds.size(), 1 + 2);  // 2 MiB in chunks of 1 MiB
  for (const UniqueFd& fd : grant->fds) {
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    EXPECT_EQ(errno, EACCES);
    void* const view = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(view, MAP_FAILED);
    EXPECT_NE(mprotect(view, 4096, PROT_READ | PROT_WRITE), 0);
    EXPECT_EQ(errno, EACCES);
    munmap(view, 4096);
    EXPECT_LT(write(fd.get(), "x", 1), 0);
    EXPECT_NE(ftruncate(fd.get(), 0), 0);
    // The same user may open the file anew: the seal is on the file, not on the descriptor.
    const UniqueFd anew(open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), O_RDWR | O_CLOEXEC));
    if (!anew.ok()) continue;
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, anew.get(), 0), MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
    EXPECT_LT(write(anew.get(), "x", 1), 0);
    EXPECT_NE(ftruncate(anew.get(), 0), 0);
    EXPECT_NE(fallocate(anew.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  }
  ExpectUnharmed();
}

TEST_F(ShmHostileTest, StoresOutsideTheLeaseOrTheStagingMemoryCutTheChannel) {
  const ShmStore stores[] = {
      {.ticket = 1, .offset = kLeaseBytes, .bytes = 1, .staging_offset = 0},
      {.ticket = 1, .offset = kLeaseBytes - 1, .bytes = 2, .staging_offset = 0},
      {.ticket = 1, .offset = -1, .bytes = 2, .staging_offset = 0},
      {.ticket = 1, .offset = 0, .bytes = 0, .staging_offset = 0},
      {.ticket = 1, .offset = 0, .bytes = -1, .staging_offset = 0},
      {.ticket = 1, .offset = INT64_MAX, .bytes = INT64_MAX, .staging_offset = INT64_MAX},
      {.ticket = 1, .offset = 1, .bytes = INT64_MAX, .staging_offset = 0},
      {.ticket = 1, .offset = INT64_MIN, .bytes = INT64_MIN, .staging_offset = INT64_MIN},
      {.ticket = 1, .offset = 0, .bytes = 4096, .staging_offset = kStagingBytes - 4095},
      {.ticket = 1, .offset = 0, .bytes = 4096, .staging_offset = -1},
      {.ticket = 1, .offset = 0, .bytes = kStagingBytes + 1, .staging_offset = 0},
  };
  GoodStaging staging;
  for (const ShmStore& store : stores) {
    RawPeer peer(channel());
    peer.SayHello(staging.fd);
    ASSERT_TRUE(peer.Hear().has_value());
    peer.Say(store);
    EXPECT_TRUE(peer.IsCut()) << store.offset << ' ' << store.bytes << ' ' << store.staging_offset;
  }
  ExpectUnharmed();
}

TEST_F(ShmHostileTest, StagingMemoryThatCanBePulledAwayIsRefused) {
  GoodStaging good;
  const UniqueFd unsealed = PlainMemory(kStagingBytes);
  UniqueFd sparse = PlainMemory(kStagingBytes);
  ASSERT_EQ(fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_SHRINK | 0x0010), 0);
  const UniqueFd file(open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  const UniqueFd device(open("/dev/zero", O_RDWR | O_CLOEXEC));
  const UniqueFd folder(open("/", O_RDONLY | O_CLOEXEC));
  for (const UniqueFd* fd : {&unsealed, const_cast<const UniqueFd*>(&sparse), &file, &device, &folder}) {
    if (!fd->ok()) continue;
    RawPeer peer(channel());
    peer.SayHello(*fd);
    EXPECT_TRUE(peer.IsCut());
  }
  for (const int64_t bytes :
       {kStagingBytes + 4096, int64_t{4097}, int64_t{0}, int64_t{-4096}, INT64_MAX / 4096 * 4096}) {
    RawPeer peer(channel());
    peer.SayHello(good.fd, bytes);
    EXPECT_TRUE(peer.IsCut()) << bytes;
  }
  ExpectUnharmed();
}

TEST_F(ShmHostileTest, ABorrowerThatIsLetInAndCannotOpenItsLeaseIsGone) {
  RawPeer peer(channel());
  peer.SayHello(PlainMemory(kStagingBytes));  // which the donor does not map
  EXPECT_TRUE(peer.IsCut());
  EXPECT_TRUE(donor_.events.WaitFor([&] { return donor_.events.borrower_gone.contains(kLease); }));
}

TEST_F(ShmHostileTest, DescriptorsThatNobodyWantsAreClosed) {
  GoodStaging staging;
  descriptors_ = OpenDescriptors();
  {
    const std::vector<int> many(200, staging.fd.get());
    ShmHello hello = {.lease = kLease.value(), .staging_bytes = kStagingBytes};
    SetWireText(hello.capability, kCapability);
    SetWireText(hello.instance, "borrower-instance");
    RawPeer none(channel()), two(channel()), with_renew(channel()), with_garbage(channel()), too_many(channel());
    none.Say(hello);
    two.Say(hello, std::span(many).first(2));
    with_renew.Say(ShmRenew{7}, std::span(many).first(100));
    with_garbage.SayBytes(std::vector<std::byte>(100), many);
    too_many.SayBytes(std::vector<std::byte>(kMaxShmMessageBytes + 1), many);
    for (RawPeer* peer : {&none, &two, &with_renew, &with_garbage, &too_many}) EXPECT_TRUE(peer->IsCut());
    RawPeer peer(channel());
    peer.SayHello(staging.fd);
    ASSERT_TRUE(peer.Hear().has_value());
    peer.Say(ShmStore{.ticket = 1, .offset = 0, .bytes = 1, .staging_offset = 0}, many);
    EXPECT_TRUE(peer.IsCut());
  }
  ExpectNoDescriptorsLeft();
  ExpectUnharmed();
}

TEST_F(ShmHostileTest, MessagesOutOfTurnCutTheChannel) {
  GoodStaging staging;
  const std::vector<std::vector<std::byte>> first = {EncodeShmMessage(ShmRenew{7}),
                                                     EncodeShmMessage(ShmRelease{}),
                                                     EncodeShmMessage(ShmStore{1, 0, 1, 0}),
                                                     EncodeShmMessage(ShmStored{1}),
                                                     EncodeShmMessage(ShmRevoke{1}),
                                                     EncodeShmMessage(ShmRefuse{LeaseRefusal::kNotGranted}),
                                                     std::vector<std::byte>{},
                                                     std::vector<std::byte>(7)};
  for (const std::vector<std::byte>& message : first) {
    RawPeer peer(channel());
    peer.SayBytes(message);
    EXPECT_TRUE(peer.IsCut()) << message.size();
  }
  const std::vector<std::vector<std::byte>> later = {EncodeShmMessage(ShmRenewed{}), EncodeShmMessage(ShmStored{1}),
                                                     EncodeShmMessage(ShmRevoke{1})};
  for (const std::vector<std::byte>& message : later) {
    RawPeer peer(channel());
    peer.SayHello(staging.fd);
    ASSERT_TRUE(peer.Hear().has_value());
    peer.SayBytes(message);
    EXPECT_TRUE(peer.IsCut()) << message.size();
  }
  RawPeer twice(channel());
  twice.SayHello(staging.fd);
  ASSERT_TRUE(twice.Hear().has_value());
  twice.SayHello(staging.fd);
  EXPECT_TRUE(twice.IsCut());
  ExpectUnharmed();
}

TEST_F(ShmHostileTest, ASecondChannelForALeaseIsRefusedAndTheFirstGoesOn) {
  GoodStaging staging;
  RawPeer first(channel());
  first.SayHello(staging.fd);
  ASSERT_TRUE(first.Hear().has_value());
  RawPeer second(channel());
  second.SayHello(staging.fd);
  const std::optional<ShmDatagram> answer = second.Hear();
  ASSERT_TRUE(answer.has_value());
  const auto refuse = ParseShmMessage(answer->bytes);
  ASSERT_TRUE(refuse.ok() && std::holds_alternative<ShmRefuse>(*refuse));
  EXPECT_EQ(std::get<ShmRefuse>(*refuse).reason, LeaseRefusal::kAlreadyOpen);
  EXPECT_TRUE(second.IsCut());
  first.Say(ShmStore{.ticket = 5, .offset = 0, .bytes = 4, .staging_offset = 0});
  EXPECT_TRUE(first.Hear().has_value());
}

TEST_F(ShmHostileTest, ASecondCopyOfAStoreCutsTheChannelBeforeItIsCopied) {
  for (const int64_t again : {5, 4}) {
    GoodStaging staging;
    staging.memory.base()[0] = std::byte{0x11};
    RawPeer peer(channel());
    peer.SayHello(staging.fd);
    ASSERT_TRUE(peer.Hear().has_value());
    peer.Say(ShmStore{.ticket = 5, .offset = 0, .bytes = 1, .staging_offset = 0});
    ASSERT_TRUE(peer.Hear().has_value());
    staging.memory.base()[0] = std::byte{0x22};  // another block's
    peer.Say(ShmStore{.ticket = again, .offset = 0, .bytes = 1, .staging_offset = 0});
    EXPECT_TRUE(peer.IsCut()) << again;
    EXPECT_EQ(std::count(donor_.arena.base(), donor_.arena.base() + kArenaBytes, std::byte{0x22}),
              std::count(before_.begin(), before_.end(), std::byte{0x22}));
  }
}

TEST_F(ShmHostileTest, StoresAfterTheFenceChangeNothing) {
  std::mt19937 random(5);
  GoodStaging staging(2 * kMiB);
  std::memset(staging.memory.base(), 0xee, 2 * kMiB);
  for (int round = 0; round < 200; ++round) {
    const LeaseId lease(100 + round);
    ASSERT_TRUE(donor_.transport
                    ->Grant({.lease = lease,
                             .offset_bytes = kMiB,
                             .bytes = kLeaseBytes,
                             .borrower_instance = "borrower-instance",
                             .capability = kCapability})
                    .ok());
    RawPeer peer(channel());
    ShmHello hello = {.lease = lease.value(), .staging_bytes = 2 * kMiB};
    SetWireText(hello.capability, kCapability);
    SetWireText(hello.instance, "borrower-instance");
    const int fds[] = {staging.fd.get()};
    peer.Say(hello, fds);
    ASSERT_TRUE(peer.Hear().has_value());
    std::thread storer([&] {
      for (int i = 0; i < 40; ++i) peer.Say(ShmStore{i, 0, 2 * kMiB, 0});
    });
    for (uint32_t spin = random() % 40000; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    donor_.transport->Fence(lease);
    std::copy(before_.begin() + kMiB, before_.begin() + kMiB + kLeaseBytes, donor_.arena.base() + kMiB);
    storer.join();
    ASSERT_EQ(std::memcmp(before_.data(), donor_.arena.base(), kArenaBytes), 0) << "round " << round;
  }
  ExpectUnharmed();
}

TEST_F(ShmHostileTest, RandomAndMutatedMessagesOnlyCutTheirChannels) {
  GoodStaging staging;
  descriptors_ = OpenDescriptors();
  std::mt19937_64 random(RandomSeed());
  ShmHello hello = {.lease = kLease.value(), .staging_bytes = kStagingBytes};
  SetWireText(hello.capability, kCapability);
  SetWireText(hello.instance, "borrower-instance");
  const std::vector<std::vector<std::byte>> seeds = {
      EncodeShmMessage(hello),           EncodeShmMessage(ShmStore{1, 4096, 4096, 0}),
      EncodeShmMessage(ShmRenew{7}),     EncodeShmMessage(ShmStored{1}),
      EncodeShmMessage(ShmRevoke{1000}), EncodeShmMessage(ShmRelease{})};
  for (int i = 0; i < 1500; ++i) {
    RawPeer peer(channel());
    // Never the right capability with a whole HELLO: what a borrower may do to its own lease is no harm, but a change.
    for (int n = random() % 4; n >= 0; --n) {
      std::vector<std::byte> message = seeds[random() % seeds.size()];
      if (random() % 3 == 0) {
        message.resize(random() % 600);
        for (std::byte& b : message) b = static_cast<std::byte>(random());
      } else {
        message[sizeof(WireHeader) + sizeof(int64_t) * 2 < message.size() ? 24 : 0] ^= std::byte{1};
        for (int k = random() % 6; k >= 0; --k) message[random() % message.size()] = static_cast<std::byte>(random());
      }
      const std::vector<int> fds(random() % 3, staging.fd.get());
      if (!peer.SayBytes(message, fds)) break;
    }
    if (random() % 2 == 0) {  // the others close midway
      EXPECT_TRUE(peer.IsCut());
    }
    if (i % 100 == 0) ExpectUnharmed();
  }
  ExpectNoDescriptorsLeft();
  ExpectUnharmed();
}

TEST_F(ShmHostileTest, SilentStrangersMakeRoomForBorrowers) {
  std::vector<RawPeer> silent;
  for (int i = 0; i < 300; ++i) {
    silent.emplace_back(channel());
    if (i % 16 == 0) ExpectUnharmed();
  }
  GoodStaging staging;
  RawPeer peer(channel());
  peer.SayHello(staging.fd);
  EXPECT_TRUE(peer.Hear().has_value());
  EXPECT_TRUE(silent.front().IsCut());
}

TEST_F(ShmHostileTest, AFloodOfRenewalsIsCutAndDelaysNobody) {
  GoodStaging staging;
  RawPeer peer(channel());
  peer.SayHello(staging.fd);
  ASSERT_TRUE(peer.Hear().has_value());
  bool cut = false;
  std::thread flood([&] { cut = peer.FloodUntilCut([] { return EncodeShmMessage(ShmRenew{7}); }); });
  ExpectUnharmed();
  flood.join();
  EXPECT_TRUE(cut);
}

TEST_F(ShmHostileTest, AFloodOfStoresIsCut) {
  GoodStaging staging;
  RawPeer peer(channel());
  peer.SayHello(staging.fd);
  ASSERT_TRUE(peer.Hear().has_value());
  int64_t ticket = 0;
  // Answers are left unread.
  EXPECT_TRUE(peer.FloodUntilCut([&] { return EncodeShmMessage(ShmStore{++ticket, 0, kStagingBytes, 0}); }));
}

}  // namespace
}  // namespace swiftcache::engine::transport
