// SPDX-License-Identifier: Apache-2.0
// What leases over shared memory cost beside a memcpy of the same bytes: blocks stored to a donor, loaded back, read
// where they lie, and fences while a store is being copied and while nothing is. Two engines' transports in one
// process. memcpy, store, load and reading take turns, since shared machines change their speed from minute to minute.
// So do revocations with and without --remap_on_return.
//
//   swiftcache-transport-bench [BLOCK_KIB [MIB [ROUNDS]]]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/units.h"
#include "engine/backend/address_space.h"
#include "engine/memory/arena.h"
#include "engine/transport/shm_transport.h"
#include "tests/fakes/recording_transport_events.h"

namespace swiftcache::engine::transport {
namespace {

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "swiftcache-transport-bench: %s\n", std::string(value.status().message()).c_str());
  std::exit(1);
}

constexpr backend::AddressSpace kSpace;

struct Engine {
  Engine(const std::string& folder, const std::string& name, int64_t bytes, int64_t block_bytes, bool remaps = false)
      : name(name),
        arena(Value(memory::Arena::Create({.bytes = bytes, .block_bytes = block_bytes, .shared = !remaps}))),
        transport(Value(ShmTransport::Create(
            {.shm_dir = folder, .name = name, .instance_id = name, .remap_on_return = remaps}, arena, clock, events))) {
  }
  std::string name;
  RealClock clock;
  memory::Arena arena;
  RecordingTransportEvents events;
  std::unique_ptr<ShmTransport> transport;
};

struct Bench {
  Engine& donor;
  Engine& borrower;
  int64_t block_bytes;
  int64_t num_blocks;
  int64_t next_lease = 0;

  int64_t bytes() const { return block_bytes * num_blocks; }

  LeaseView Lend() {
    const kv::LeaseId lease(++next_lease);
    const kv::Epoch epoch = Value(donor.transport->Grant(
        {.lease = lease, .bytes = bytes(), .borrower_instance = "borrower", .capability = "capability"}));
    borrower.transport->Open({.lease = lease,
                              .channel = donor.transport->channel(),
                              .capability = "capability",
                              .bytes = bytes(),
                              .epoch = epoch,
                              .store_bytes = block_bytes});
    return Value(borrower.events.Opening(lease));
  }
  kv::LeaseId lease() const { return kv::LeaseId(next_lease); }

  template <typename Work>
  double Gbps(Work work) const {
    const absl::Time start = borrower.clock.Now();
    work();
    return static_cast<double>(bytes()) / absl::ToDoubleNanoseconds(borrower.clock.Now() - start);
  }

  void StoreBlock(int64_t i) {
    const StorePiece piece{lease(), i * block_bytes, kSpace.Of(borrower.arena.base() + i * block_bytes), block_bytes};
    (void)borrower.transport->Store({&piece, 1}, {});
  }
  void Store() {
    borrower.events.ForgetStored();
    for (int64_t i = 0; i < num_blocks; ++i) StoreBlock(i);
    (void)borrower.events.WaitFor([&] { return borrower.events.stored.size() == static_cast<size_t>(num_blocks); });
  }
  void Load() {
    (void)borrower.transport->Await(
        borrower.transport->Load({{lease(), 0, bytes(), kSpace.Of(borrower.arena.base())}}, {}));
  }
  // One fence, in nanoseconds, with `stores` on their way.
  double Fence(int64_t stores) {
    Lend();
    for (int64_t i = 0; i < stores; ++i) StoreBlock(i);
    const int64_t before = donor.transport->stats().received_bytes;
    while (stores > 0 && donor.transport->stats().received_bytes == before) {
    }
    const absl::Time start = donor.clock.Now();
    donor.transport->Fence(lease());
    const double taken = absl::ToDoubleNanoseconds(donor.clock.Now() - start);
    borrower.transport->Close(lease());
    return taken;
  }
};

double Quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

uint64_t Sum(const std::byte* at, int64_t bytes) {
  uint64_t sum = 0, word = 0;
  for (int64_t i = 0; i < bytes; i += sizeof word) {
    std::memcpy(&word, at + i, sizeof word);
    sum += word;
  }
  return sum;
}

void Rates(Bench& bench, int rounds) {
  const LeaseView view = bench.Lend();
  std::vector<std::byte> scratch(bench.bytes());
  std::byte* const local = bench.borrower.arena.base();
  std::vector<double> copy, store, load, read_local, read_lease;
  uint64_t sum = 0;
  for (int round = 0; round <= rounds; ++round) {  // the first touches everything and does not count
    copy.push_back(bench.Gbps([&] { std::memcpy(scratch.data(), local, bench.bytes()); }));
    store.push_back(bench.Gbps([&] { bench.Store(); }));
    load.push_back(bench.Gbps([&] { bench.Load(); }));
    read_local.push_back(bench.Gbps([&] { sum += Sum(local, bench.bytes()); }));
    read_lease.push_back(bench.Gbps([&] { sum -= Sum(kSpace.Host(view.base), bench.bytes()); }));
    if (round == 0) copy.clear(), store.clear(), load.clear(), read_local.clear(), read_lease.clear();
  }
  std::printf(
      "%lld blocks of %lld KiB, medians of %d rounds (GB/s): memcpy %.2f  store %.2f (%.0f %%)  load %.2f (%.0f %%)\n",
      static_cast<long long>(bench.num_blocks), static_cast<long long>(bench.block_bytes / kKiB), rounds,
      Quantile(copy, .5), Quantile(store, .5), 100 * Quantile(store, .5) / Quantile(copy, .5), Quantile(load, .5),
      100 * Quantile(load, .5) / Quantile(copy, .5));
  std::printf("reading: local %.2f  where it lies with the donor %.2f%s\n", Quantile(read_local, .5),
              Quantile(read_lease, .5), sum == 0 ? "" : "  (THE BYTES DIFFER)");
  bench.donor.transport->Fence(bench.lease());
  bench.borrower.transport->Close(bench.lease());
}

void Fences(Bench& bench, int times) {
  for (const int64_t stores : {int64_t{0}, std::min<int64_t>(bench.num_blocks, 16)}) {
    std::vector<double> taken;
    for (int i = 0; i < times; ++i) taken.push_back(bench.Fence(stores));
    std::printf("fence with %lld stores on their way, %d times (us): p50 %.1f  p99 %.1f  most %.1f\n",
                static_cast<long long>(stores), times, Quantile(taken, .5) / 1e3, Quantile(taken, .99) / 1e3,
                Quantile(taken, 1) / 1e3);
  }
}

// One lease of so many bytes after the other.
class Revocation {
 public:
  Revocation(const std::string& folder, bool remaps, int64_t bytes)
      : bytes_(bytes),
        donor_(folder, remaps ? "remaps" : "keeps", bytes, bytes, remaps),
        borrower_(folder, remaps ? "reader-of-remaps" : "reader-of-keeps", sysconf(_SC_PAGESIZE), 1) {}

  // Milliseconds that the grant takes, and from the revocation to memory that its owner has written to, all of it; if
  // `kept`, the borrower unmaps only afterwards.
  std::pair<double, double> Once(bool kept) {
    const kv::LeaseId lease(++lease_);
    const absl::Time start = clock_.Now();
    if (donor_.transport->exchanges()) Check(donor_.transport->PrepareToLend(0, bytes_));
    const kv::Epoch epoch = Value(donor_.transport->Grant(
        {.lease = lease, .bytes = bytes_, .borrower_instance = borrower_.name, .capability = "capability"}));
    const absl::Duration grant = clock_.Now() - start;
    borrower_.transport->Open({.lease = lease,
                               .channel = donor_.transport->channel(),
                               .capability = "capability",
                               .bytes = bytes_,
                               .epoch = epoch,
                               .store_bytes = 4096});
    (void)Sum(kSpace.Host(Value(borrower_.events.Opening(lease)).base), bytes_);
    if (!kept) borrower_.transport->Close(lease);
    const absl::Time revoked = clock_.Now();
    donor_.transport->Fence(lease);
    if (donor_.transport->exchanges()) Check(donor_.transport->Exchange(0, bytes_));
    std::memset(donor_.arena.base(), 1, bytes_);
    const absl::Duration back = clock_.Now() - revoked;
    if (kept) borrower_.transport->Close(lease);
    return {absl::ToDoubleMilliseconds(grant), absl::ToDoubleMilliseconds(back)};
  }

 private:
  static void Check(const absl::Status& status) { Value<int>(status.ok() ? absl::StatusOr<int>(0) : status); }

  const RealClock clock_;
  const int64_t bytes_;
  Engine donor_, borrower_;
  int64_t lease_ = 0;
};

void Revocations(const std::string& folder, int64_t bytes, int times) {
  Revocation keeps(folder, false, bytes), remaps(folder, true, bytes);
  std::vector<double> kept_grant, kept_back, grant, back, late;
  for (int i = 0; i < times; ++i) {
    const auto [old_grant, old_back] = keeps.Once(/*kept=*/false);
    const auto [new_grant, new_back] = remaps.Once(/*kept=*/false);
    kept_grant.push_back(old_grant), kept_back.push_back(old_back), grant.push_back(new_grant),
        back.push_back(new_back);
    late.push_back(remaps.Once(/*kept=*/true).second);
  }
  std::printf(
      "leases of %lld MiB, %d times (ms): grant p50 %.2f, with --remap_on_return %.2f; memory back and written to p50 "
      "%.2f p99 %.2f, with it %.2f and %.2f, and %.2f and %.2f where the borrower still has it mapped\n",
      static_cast<long long>(bytes / kMiB), times, Quantile(kept_grant, .5), Quantile(grant, .5),
      Quantile(kept_back, .5), Quantile(kept_back, .99), Quantile(back, .5), Quantile(back, .99), Quantile(late, .5),
      Quantile(late, .99));
}

int Main(int argc, char** argv) {
  const int64_t block_bytes = (argc > 1 ? std::atoll(argv[1]) : 720) * kKiB;
  const int64_t num_blocks = std::max<int64_t>((argc > 2 ? std::atoll(argv[2]) : 64) * kMiB / block_bytes, 1);
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 15;
  char folder[] = "/tmp/swiftcache-transport-bench-XXXXXX";
  if (block_bytes <= 0 || block_bytes % sysconf(_SC_PAGESIZE) != 0 || rounds < 1 || mkdtemp(folder) == nullptr) {
    std::fprintf(stderr, "usage: swiftcache-transport-bench [BLOCK_KIB, whole pages [MIB [ROUNDS]]]\n");
    return 2;
  }
  {
    Engine donor(folder, "donor", num_blocks * block_bytes, block_bytes);
    Engine borrower(folder, "borrower", num_blocks * block_bytes, block_bytes);
    Bench bench = {donor, borrower, block_bytes, num_blocks};
    Rates(bench, rounds);
    Fences(bench, 500);
  }
  Revocations(folder, 16 * kMiB, 10 * rounds);
  Revocations(folder, kGiB, rounds);
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace swiftcache::engine::transport

int main(int argc, char** argv) { return swiftcache::engine::transport::Main(argc, argv); }
