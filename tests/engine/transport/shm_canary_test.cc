// SPDX-License-Identifier: Apache-2.0
// What a borrower that means harm can read of its donor: it keeps all that it was ever given, and hunts through it for
// what the donor wrote beside its lease, and after it.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/transport/shm_memory.h"
#include "tests/engine/transport/raw_peer.h"
#include "tests/engine/transport/staging_memory.h"
#include "tests/engine/transport/test_lease.h"
#include "tests/engine/transport/transport_harness.h"

namespace swiftcache::engine::transport {
namespace {

using kv::LeaseId;
using memory::UniqueFd;

constexpr int64_t kLentAt = 2 * kMiB - 2 * kBlockBytes, kLentBytes = 4 * kBlockBytes;  // over the border of two chunks
constexpr std::string_view kBeside = "a canary beside the lease", kAfter = "a canary after the lease";

int64_t SizeOf(int fd) {
  struct stat file = {};
  EXPECT_EQ(fstat(fd, &file), 0);
  return file.st_size;
}

// All of a file, mapped; unmapped by memory::Mapping.
memory::Mapping MapAll(int fd) {
  const int64_t bytes = SizeOf(fd);
  void* const at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  EXPECT_NE(at, MAP_FAILED);
  return {static_cast<std::byte*>(at), bytes};
}

bool Shows(const memory::Mapping& mapping, std::string_view canary) {
  return memmem(mapping.base(), mapping.bytes(), canary.data(), canary.size()) != nullptr;
}

bool ReadShows(int fd, std::string_view canary) {
  std::string all(SizeOf(fd), '\0');
  EXPECT_EQ(pread(fd, all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
  return all.find(canary) != std::string::npos;
}

// Borrows one lease after the other.
class Hunter {
 public:
  Hunter(Node& donor, const std::string& folder) : donor_(donor), folder_(folder) {}

  // Takes what the grant shows, and goes on having it.
  void Borrow(LeaseId lease) {
    ASSERT_TRUE(donor_.transport
                    ->Grant({.lease = lease,
                             .offset_bytes = kLentAt,
                             .bytes = kLentBytes,
                             .borrower_instance = "borrower-instance",
                             .capability = kCapability})
                    .ok());
    RawPeer peer(donor_.transport->channel(), lease);
    peer.SayHello(staging_.fd);
    std::optional<ShmDatagram> grant = peer.Hear();
    ASSERT_TRUE(grant.has_value());
    ASSERT_GT(grant->fds.size(), 1);
    fds_.clear();
    for (UniqueFd& fd : grant->fds) {
      mappings_.push_back(MapAll(fd.get()));
      fds_.push_back(std::move(fd));
    }
  }
  int64_t bytes_shown() const {
    int64_t bytes = 0;
    for (size_t i = 1; i < fds_.size(); ++i) bytes += SizeOf(fds_[i].get());  // the first shows generation words
    return bytes;
  }
  // In what it mapped, for the latest lease.
  bool SeesMapped(std::string_view canary) const {
    return std::any_of(mappings_.end() - static_cast<int64_t>(fds_.size()), mappings_.end(),
                       [&](const memory::Mapping& mapping) { return Shows(mapping, canary); });
  }
  // In what it mapped, for all leases.
  int64_t TimesEverMapped(std::string_view canary) const {
    return std::count_if(mappings_.begin(), mappings_.end(),
                         [&](const memory::Mapping& mapping) { return Shows(mapping, canary); });
  }
  // By whatever a descriptor, its name in /proc, or a name in the folder gives.
  bool SeesAnew(std::string_view canary) const {
    bool sees = false;
    for (const UniqueFd& fd : fds_) {
      (void)!ftruncate(fd.get(), SizeOf(fd.get()) + kArenaBytes);
      sees |= Shows(MapAll(fd.get()), canary) || ReadShows(fd.get(), canary);
      for (const int how : {O_RDONLY, O_RDWR}) {
        const UniqueFd again(open(absl::StrCat("/proc/self/fd/", fd.get()).c_str(), how | O_CLOEXEC));
        if (!again.ok()) continue;
        (void)!ftruncate(again.get(), SizeOf(fd.get()) + kArenaBytes);
        sees |= Shows(MapAll(again.get()), canary) || ReadShows(again.get(), canary);
      }
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const UniqueFd named(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      if (named.ok() && SizeOf(named.get()) > 0) sees |= ReadShows(named.get(), canary);
    }
    return sees;
  }

 private:
  Node& donor_;
  const std::string folder_;
  GoodStaging staging_;
  std::vector<UniqueFd> fds_;              // of the latest lease
  std::vector<memory::Mapping> mappings_;  // of all leases, all of each file
};

// All of a donor's memory but what is lent.
void WriteBeside(Node& donor, std::string_view canary) {
  for (int64_t at = 0; at + 64 <= kArenaBytes; at += 1024) {
    if (at + 64 > kLentAt && at < kLentAt + kLentBytes) continue;
    std::memcpy(donor.arena.base() + at, canary.data(), canary.size());
  }
}

void WriteOver(Node& donor, std::string_view canary) {
  for (int64_t at = kLentAt; at < kLentAt + kLentBytes; at += 1024) {
    std::memcpy(donor.arena.base() + at, canary.data(), canary.size());
  }
}

TEST(ShmCanaryTest, WithRemapOnReturnABorrowerFindsNothingThatItsDonorWritesAfterwardsOrBesideItsLease) {
  constexpr int64_t kTimes = 1000;
  ShmFolder folder;
  Node donor(folder, {.name = "donor", .remap_on_return = true}), honest(folder, {.name = "honest"});
  Hunter hunter(donor, folder.path());
  WriteBeside(donor, kBeside);
  for (int64_t i = 1; i <= kTimes; ++i) {
    ASSERT_EQ(donor.transport->PrepareToLend(kLentAt, kLentBytes), absl::OkStatus());
    hunter.Borrow(LeaseId(i));
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(hunter.bytes_shown(), kLentBytes) << "what is shown is the lease";
    ASSERT_FALSE(hunter.SeesMapped(kBeside) || hunter.SeesAnew(kBeside)) << "at lease " << i;
    donor.transport->Fence(LeaseId(i));
    ASSERT_EQ(donor.transport->Exchange(kLentAt, kLentBytes), absl::OkStatus());
    WriteOver(donor, kAfter);
    ASSERT_FALSE(hunter.SeesMapped(kAfter) || hunter.SeesAnew(kAfter)) << "at lease " << i;
    ASSERT_EQ(std::memcmp(donor.arena.base() + kLentAt, kAfter.data(), kAfter.size()), 0);
  }
  EXPECT_EQ(hunter.TimesEverMapped(kAfter), 0);
  EXPECT_EQ(hunter.TimesEverMapped(kBeside), 0);
}

// The same hunt finds what is there to be found.
TEST(ShmCanaryTest, WithoutRemapOnReturnItFindsBoth) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor"});
  Hunter hunter(donor, folder.path());
  WriteBeside(donor, kBeside);
  for (int64_t i = 1; i <= 10; ++i) {
    std::memset(donor.arena.base() + kLentAt, 0, kLentBytes);
    hunter.Borrow(LeaseId(i));
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_EQ(hunter.bytes_shown(), 2 * kMiB) << "whole chunks are shown";
    EXPECT_TRUE(hunter.SeesMapped(kBeside) && hunter.SeesAnew(kBeside));
    EXPECT_FALSE(hunter.SeesMapped(kAfter) || hunter.SeesAnew(kAfter));
    donor.transport->Fence(LeaseId(i));
    WriteOver(donor, kAfter);
    EXPECT_TRUE(hunter.SeesMapped(kAfter));
    EXPECT_TRUE(hunter.SeesAnew(kAfter));
  }
}

// What is stored for the next borrower in the same place is that one's, and whoever had it before sees nothing of it.
TEST(ShmCanaryTest, TheNextBorrowerOfAPlaceIsShownOtherMemory) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor", .remap_on_return = true}), next(folder, {.name = "next"});
  Hunter hunter(donor, folder.path());
  ASSERT_EQ(donor.transport->PrepareToLend(kLentAt, kLentBytes), absl::OkStatus());
  hunter.Borrow(LeaseId(1));
  ASSERT_FALSE(HasFatalFailure());
  donor.transport->Fence(LeaseId(1));
  ASSERT_EQ(donor.transport->Exchange(kLentAt, kLentBytes), absl::OkStatus());
  WriteOver(donor, kBeside);
  ASSERT_EQ(donor.transport->PrepareToLend(kLentAt, kLentBytes), absl::OkStatus());
  const LeaseView view = Lend(donor, next, LeaseId(2), kLentAt, kLentBytes, kBlockBytes);
  const std::vector<std::byte> zeros(kLentBytes);
  EXPECT_EQ(std::memcmp(BytesAt(view.base), zeros.data(), kLentBytes), 0) << "nothing of the donor comes along";
  std::vector<std::byte> block(kBlockBytes);
  std::memcpy(block.data() + 100, kAfter.data(), kAfter.size());
  ASSERT_EQ(next.events.Fate(next.Store(LeaseId(2), kBlockBytes, block.data(), kBlockBytes)), absl::OkStatus());
  EXPECT_EQ(std::memcmp(BytesAt(view.base) + kBlockBytes, block.data(), kBlockBytes), 0);
  EXPECT_EQ(std::memcmp(donor.arena.base() + kLentAt + kBlockBytes, block.data(), kBlockBytes), 0);
  EXPECT_FALSE(hunter.SeesMapped(kAfter) || hunter.SeesAnew(kAfter));
  EXPECT_FALSE(hunter.SeesMapped(kBeside) || hunter.SeesAnew(kBeside));
}

// Its lease ends, and the place is another's, at the worst moment: when what is shown is looked up.
class LateMemory final : public ShmMemory {
 public:
  using ShmMemory::ShmMemory;
  absl::StatusOr<ShownMemory> Show(int64_t offset, int64_t bytes) const override {
    before_show();
    return ShmMemory::Show(offset, bytes);
  }
  std::function<void()> before_show;
};

TEST(ShmCanaryTest, AGrantThatEndsWhileItIsSentShowsNothing) {
  ShmFolder folder;
  const RealClock clock;
  RecordingTransportEvents events;
  memory::Arena arena = memory::Arena::Create({.bytes = kArenaBytes, .block_bytes = kBlockBytes}).value();
  auto late = std::make_unique<LateMemory>(arena, backend::AddressSpace(), /*remaps=*/true);
  LateMemory& memory = *late;
  const auto donor = ShmTransport::CreateOver(
      "shm", std::move(late), {.shm_dir = folder.path(), .name = "donor", .instance_id = "donor"}, clock, events);
  ASSERT_TRUE(donor.ok()) << donor.status();
  memory.before_show = [&] {
    (*donor)->Fence(kLease);
    ASSERT_EQ((*donor)->Exchange(kLentAt, kLentBytes), absl::OkStatus());
    ASSERT_EQ((*donor)->PrepareToLend(kLentAt, kLentBytes), absl::OkStatus());  // for the next
  };
  ASSERT_EQ((*donor)->PrepareToLend(kLentAt, kLentBytes), absl::OkStatus());
  ASSERT_TRUE((*donor)
                  ->Grant({.lease = kLease,
                           .offset_bytes = kLentAt,
                           .bytes = kLentBytes,
                           .borrower_instance = "borrower-instance",
                           .capability = kCapability})
                  .ok());
  GoodStaging staging;
  RawPeer peer((*donor)->channel());
  peer.SayHello(staging.fd);
  EXPECT_FALSE(peer.Hear().has_value()) << "no GRANT, but the channel's end";
}

// A lease that is granted and was never prepared shows nothing at all.
TEST(ShmCanaryTest, WhatHasNoMemoryOfItsOwnIsNotShown) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor", .remap_on_return = true}), borrower(folder, {.name = "borrower"});
  EXPECT_FALSE(OpenNow(borrower, Granted(donor, borrower, kLease, kLentAt, kLentBytes, kBlockBytes)).ok());
  EXPECT_EQ(donor.transport->Exchange(kLentAt, kLentBytes), absl::OkStatus()) << "there is nothing to exchange";
}

// A broker that is wrong about blocks may offer such.
TEST(ShmCanaryTest, WhatIsNotWholePagesIsNotLent) {
  ShmFolder folder;
  Node donor(folder, {.name = "donor", .remap_on_return = true});
  const int64_t page = memory::Arena::page_bytes();
  for (const auto& [offset, bytes] : {std::pair(page / 2, page), std::pair(kLentAt, page + page / 2)}) {
    EXPECT_EQ(donor.transport->PrepareToLend(offset, bytes).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(donor.transport->Exchange(offset, bytes), absl::OkStatus()) << "there is nothing to exchange";
  }
}

}  // namespace
}  // namespace swiftcache::engine::transport
