// SPDX-License-Identifier: Apache-2.0
// swiftcache-broker: knows which engines there are and which leases they hold, and reports changes to watchers.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "broker/loop/broker_loop.h"
#include "broker/rpc/broker_service.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/base/wall_time.h"
#include "common/http/http_metrics.h"
#include "common/http/http_server.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "services/flags.h"
#include "services/log_flags.h"
#include "services/process_metrics.h"
#include "services/server_shell.h"

namespace swiftcache {
namespace {

constexpr char kProgram[] = "swiftcache-broker";
constexpr int kMaxRequestBytes = 16 << 20;                 // several times the largest that an engine registers with
constexpr absl::Duration kStopTimeout = absl::Seconds(2);  // for calls under way, which take microseconds

struct BrokerFlags {
  std::string listen = "127.0.0.1:50050", http_listen = "127.0.0.1:9180", advertise;
  broker::membership::Options membership;
  broker::ledger::Options ledger;
  std::string elastic_policy = "default";
  absl::Duration lease_ttl = absl::Seconds(10);
  services::LogFlags log;
  std::string changed;  // Flags::Changed

  std::optional<int> Parse(int argc, char** argv) {
    services::Flags flags(kProgram,
                          "Knows which engines are there and who lends KV memory to whom, and tells whoever watches.");
    flags.Address("listen", &listen, "gRPC address; port 0 picks one");
    flags.Address("http_listen", &http_listen, "HTTP address of /live, /health and /metrics; port 0 picks one");
    flags.Address("advertise", &advertise,
                  "gRPC address that others dial, where it differs from --listen: logged, for operators", true);
    flags.Duration("heartbeat_interval", &membership.heartbeat_interval, absl::Milliseconds(10), absl::Minutes(1),
                   "how often engines report");
    flags.Integer("heartbeat_misses", &membership.heartbeat_misses, 1, 1000,
                  "an engine is dead after so many silent intervals");
    flags.Duration("stall_timeout", &membership.stall_timeout, absl::Milliseconds(100), absl::Hours(24),
                   "an engine whose steps stand still this long while requests wait is routed around");
    ParseLeases(flags);
    log.Declare(flags);
    const std::optional<int> exit_code = flags.Parse(argc, argv);
    changed = flags.Changed();
    ledger.elastic.kind =
        elastic_policy == "paper" ? broker::elastic::PolicyKind::kPaper : broker::elastic::PolicyKind::kDefault;
    return exit_code;
  }

  void ParseLeases(services::Flags& flags) {
    flags.Choice("elastic_policy", &elastic_policy, {"default", "paper"},
                 "who lends how much: default counts all running and waiting tokens, paper is Algorithm 1 as printed");
    flags.Duration(
        "scale_down_window", &ledger.elastic.window, absl::Milliseconds(10), absl::Hours(24),
        "how long memory was of no use before it is lent: to the prefix cache for sixteen times this, to requests for "
        "3 s, or for this if it is shorter (policy paper: t of Algorithm 1)");
    flags.Integer("lease_headroom", &ledger.elastic.headroom_percent, 0, 100,
                  "percent of its KV memory that an engine keeps beyond what it needs (default policy)");
    flags.Bytes(
        "max_lease_bytes", &ledger.max_lease_bytes, 0, int64_t{1} << 50,
        "largest single lease, at least one elastic unit: small leases are revoked one by one; 0: 16 MiB or, if "
        "that is more, 1/2048 of the KV memory of the engine that lends");
    flags.Duration("lease_ttl", &lease_ttl, absl::Milliseconds(10), absl::Hours(1),
                   "an engine takes back a lease that its borrower has not renewed for so long");
  }
};

// The capability of a lease, known to donor and borrower alone: from the system's random source, which cannot be
// guessed, as text without zeros.
std::string NewCapability() {
  std::random_device device;
  std::string capability;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = device();
    capability.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return absl::BytesToHexString(capability);
}

absl::Status Serve(const BrokerFlags& flags, services::ShutdownSignals& signals) {
  const RealClock clock;
  Metrics metrics;
  HttpMetrics http_metrics;
  broker::loop::Options options{.membership = flags.membership,
                                .ledger = flags.ledger,
                                .new_capability = NewCapability,
                                .lease_ttl = flags.lease_ttl,
                                .incarnation = services::RandomId()};
  options.ledger.wall_time = ToWallTime;
  options.ledger.id_prefix = std::random_device()() & 0x7fffffff;
  ASSIGN_OR_RETURN(auto loop, broker::loop::BrokerLoop::Create(options, clock, metrics));
  broker::rpc::BrokerDoor door(*loop, {});
  std::atomic<bool> ready = false, draining = false;
  HttpServer::Options http_options{.listen = flags.http_listen};
  http_options.max_connections = services::HttpConnections(http_options.max_connections);
  http_options.ready = [&] { return ready.load(); };
  http_metrics.Watch(http_options);
  http_options.metrics = [&] {
    http_metrics.Export(metrics);
    return services::Scrape(metrics, {.program = kProgram, .ready = ready, .draining = draining});
  };
  ASSIGN_OR_RETURN(auto http, HttpServer::Create(http_options, {}));
  ASSIGN_OR_RETURN(auto server,
                   RpcServer::Create({.listen = flags.listen, .max_request_bytes = kMaxRequestBytes}, {&door}));
  server->SetServing(true);
  ready = true;
  services::PrintListening(server->address(), http->address());
  LOG(INFO) << kProgram << " " << kVersion << " incarnation=" << loop->incarnation()
            << " dial=" << (flags.advertise.empty() ? server->address() : flags.advertise);

  const int signal = signals.Wait();
  ready = false;
  draining = true;
  server->SetServing(false);
  LOG(INFO) << "signal " << signal << ": stopping";
  loop->Stop();
  const absl::Time stopped = clock.Now() + kStopTimeout;
  server->Stop(stopped);
  http->Stop(stopped);
  return absl::OkStatus();
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  swiftcache::services::PrepareProcess();
  swiftcache::services::ShutdownSignals signals;
  swiftcache::BrokerFlags flags;
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  swiftcache::services::StartLogging(flags.log.Options({.program = argv[0], .engine = "", .model = ""}));
  LOG(INFO) << "flags: " << flags.changed;
  swiftcache::services::RaiseFileLimit();
  const absl::Status status = swiftcache::Serve(flags, signals);
  return status.ok() ? 0 : swiftcache::services::Fail(swiftcache::kProgram, status);
}
