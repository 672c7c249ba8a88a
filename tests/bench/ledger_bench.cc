// SPDX-License-Identifier: Apache-2.0
// What a message costs the broker, by how many engines and leases it knows: its tables, without gRPC and the log. Messages
// of all kinds come in turns, each from an engine of another node, as they do at a broker: one kind alone would find all of a
// small cluster in the innermost cache. Exits with 1 where a cell is more than twice that of the smallest cluster.
//
//   build/release/bin/swiftcache-ledger-bench
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "broker/loop/tables.h"

namespace swiftcache::broker {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr int64_t kBlock = 4096, kBlocks = 1 << 16, kLeaseBlocks = 4;
constexpr int kEnginesOfANode = 8, kBatch = 500, kBatches = 21;
constexpr double kMostGrowth = 2;

/// Engines of many nodes, each of which lends to its neighbours.
class Cluster {
 public:
  Cluster(int engines, int64_t leases) : engines_(engines) {
    for (int i = 0; i < engines; ++i) {
      const int64_t given = leases / engines + (i < leases % engines ? 1 : 0);
      Check(tables_.Register({Info(i), Given(i, given), {}}, now_));
      Check(tables_.ReportWindow(Caller(i), {}, now_));
    }
    tables_.TakeChanges();
  }
  int64_t leases() const { return static_cast<int64_t>(tables_.leases().Snapshot().size()); }

  void Heartbeat() {
    const auto who = Caller(Next());
    Check(tables_.Heartbeat(who, {.progress = ++count_}, now_));
    tables_.WeightsFor(who, now_);
    AfterEach();
  }
  void ReportWindow() {
    Check(tables_.ReportWindow(Caller(Next()), {.used_blocks = ++count_ % 100}, now_));
    AfterEach();
  }
  void ScaleUp() {
    Check(tables_.ScaleUp(Caller(Next()), 1, now_).status());
    AfterEach();
  }
  /// A request, the donor's GRANTED and its RELEASED: three messages.
  void Lease() {
    const auto answer =
        tables_.RequestLease(Caller(Next()), {.key = absl::StrCat(++count_), .want_bytes = kBlock}, now_);
    Check(answer.status());
    AfterEach();
    ledger::Lease lease = answer->leases.at(0);
    const loop::Caller donor{lease.donor.name, lease.donor.instance_id, "i"};
    lease.epoch = ledger::Epoch(1);
    for (const ledger::LeaseState state : {ledger::LeaseState::kGranted, ledger::LeaseState::kReleased}) {
      lease.state = state;
      Check(tables_.ReportLease(donor, lease, now_));
      AfterEach();
    }
  }

 private:
  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(2);
  }
  static std::string Name(int i) { return absl::StrCat("engine-", i); }
  static loop::Caller Caller(int i) { return {Name(i), Name(i), "i"}; }
  int Next() { return next_ = (next_ + 7919) % engines_; }
  // As BrokerLoop does between two messages.
  void AfterEach() {
    now_ += absl::Microseconds(1);
    tables_.Tick(now_);
    (void)tables_.NextDeadline();
    tables_.TakeChanges();
  }
  static membership::EngineInfo Info(int i) {
    return {.name = Name(i),
            .instance_id = Name(i),
            .model_name = absl::StrCat("model-", i % 5),
            .address = "localhost:1",
            .kv = {.num_layers = 1,
                   .num_kv_heads = 1,
                   .head_dim = 32,
                   .kv_cache_dtype = "f32",
                   .block_tokens = 16,
                   .block_bytes = kBlock,
                   .num_blocks = kBlocks},
            .max_model_len_tokens = 1024,
            .model_card_hash = "",
            .state = membership::EngineState::kReady,
            .lease_channel = "/run/x",
            .node_id = absl::StrCat("node-", i / kEnginesOfANode),
            .page_bytes = kBlock};
  }
  std::vector<ledger::Lease> Given(int i, int64_t count) {
    std::vector<ledger::Lease> given;
    for (int64_t k = 0; k < count; ++k) {
      const int first = i / kEnginesOfANode * kEnginesOfANode;
      const int neighbour = first + (i - first + 1 + static_cast<int>(k % (kEnginesOfANode - 1))) % kEnginesOfANode;
      given.push_back({.id = ledger::LeaseId(++last_id_),
                       .donor = {Name(i), Name(i)},
                       .borrower = {Name(neighbour), Name(neighbour)},
                       .borrower_model = absl::StrCat("model-", neighbour % 5),
                       .extent = {.first_block = kBlocks - (k + 1) * kLeaseBlocks, .num_blocks = kLeaseBlocks},
                       .num_bytes = kLeaseBlocks * kBlock,
                       .borrower_blocks = kLeaseBlocks,
                       .epoch = ledger::Epoch(1),
                       .state = ledger::LeaseState::kGranted,
                       .channel = "/run/x",
                       .capability = "c"});
    }
    return given;
  }

  const int engines_;
  loop::Tables tables_{{.membership = {.heartbeat_interval = absl::Hours(1)},
                        .ledger = {.id_prefix = 77},
                        .incarnation = "i",
                        .new_capability = [] { return "c"; }}};
  absl::Time now_ = absl::UnixEpoch();
  int64_t count_ = 0, last_id_ = 0;
  int next_ = 0;
};

using Calls = std::vector<std::function<void()>>;

// Of one call of each, the median over batches.
std::vector<double> MicrosOf(const Calls& calls) {
  std::vector<std::vector<double>> micros(calls.size());
  for (int batch = 0; batch < kBatches; ++batch) {
    std::vector<Nanos> took(calls.size(), Nanos(0));
    for (int i = 0; i < kBatch; ++i) {
      for (size_t k = 0; k < calls.size(); ++k) {
        const auto begin = std::chrono::steady_clock::now();
        calls[k]();
        took[k] += std::chrono::duration_cast<Nanos>(std::chrono::steady_clock::now() - begin);
      }
    }
    for (size_t k = 0; k < calls.size(); ++k) {
      micros[k].push_back(static_cast<double>(took[k].count()) / 1000 / kBatch);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_one : micros) {
    std::nth_element(of_one.begin(), of_one.begin() + kBatches / 2, of_one.end());
    medians.push_back(of_one[kBatches / 2]);
  }
  return medians;
}

int Main() {
  std::printf("engines   leases   heartbeat   window   scale-up   lease (3 messages)     us, medians of %d batches\n",
              kBatches);
  const double clock = MicrosOf({[] {}})[0];  // what reading it takes
  std::vector<double> least;
  bool flat = true;
  for (const auto& [engines, leases] : std::vector<std::pair<int, int64_t>>{{8, 100},
                                                                            {8, 10'000},
                                                                            {8, 30'000},
                                                                            {104, 100},
                                                                            {104, 100'000},
                                                                            {1000, 100},
                                                                            {1000, 10'000},
                                                                            {1000, 100'000}}) {
    Cluster cluster(engines, leases);
    std::vector<double> micros = MicrosOf({[&] { cluster.Heartbeat(); }, [&] { cluster.ReportWindow(); },
                                           [&] { cluster.ScaleUp(); }, [&] { cluster.Lease(); }});
    for (double& of_one : micros) of_one -= clock;
    std::printf("%7d %8lld %11.2f %8.2f %10.2f %10.2f\n", engines, static_cast<long long>(cluster.leases()), micros[0],
                micros[1], micros[2], micros[3]);
    if (least.empty()) least = micros;
    for (size_t i = 0; i < micros.size(); ++i) flat = flat && micros[i] <= kMostGrowth * least[i];
  }
  std::printf(flat ? "flat: no cell is above %.0f times the first row\n" : "NOT flat within %.0f times the first row\n",
              kMostGrowth);
  return flat ? 0 : 1;
}

}  // namespace
}  // namespace swiftcache::broker

int main(int argc, char** argv) {
  if (argc == 1) return swiftcache::broker::Main();
  std::fprintf(stderr, "swiftcache-ledger-bench: unknown argument '%s'; it takes none, and measures\n", argv[1]);
  return 2;
}
