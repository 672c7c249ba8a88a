// SPDX-License-Identifier: Apache-2.0
// swiftcache-broker: knows which engines are there and tells whoever watches.
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "broker/loop/broker_loop.h"
#include "broker/rpc/broker_service.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/http/http_server.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "services/flags.h"
#include "services/server_shell.h"

namespace swiftcache {
namespace {

constexpr char kProgram[] = "swiftcache-broker";
constexpr absl::Duration kStopTimeout = absl::Seconds(2);  // for calls under way, which take microseconds

struct BrokerFlags {
  std::string listen = "127.0.0.1:50050", http_listen = "127.0.0.1:9180", advertise;
  broker::membership::Options membership;

  std::optional<int> Parse(int argc, char** argv) {
    services::Flags flags(kProgram, "Knows which engines are there, and tells whoever watches.");
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
    return flags.Parse(argc, argv);
  }
};

absl::Status Serve(const BrokerFlags& flags, services::ShutdownSignals& signals) {
  const RealClock clock;
  Metrics metrics;
  ASSIGN_OR_RETURN(
      auto loop, broker::loop::BrokerLoop::Create({.membership = flags.membership, .incarnation = services::RandomId()},
                                                  clock, metrics));
  broker::rpc::BrokerDoor door(*loop, {});
  std::atomic<bool> ready = false;
  HttpServer::Options http_options{.listen = flags.http_listen};
  http_options.ready = [&] { return ready.load(); };
  http_options.metrics = [&] { return metrics.Serialize(); };
  ASSIGN_OR_RETURN(auto http, HttpServer::Create(http_options, {}));
  ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = flags.listen}, {&door}));
  server->SetServing(true);
  ready = true;
  services::PrintListening(server->address(), http->address());
  LOG(INFO) << kProgram << " " << kVersion << " incarnation=" << loop->incarnation()
            << " dial=" << (flags.advertise.empty() ? server->address() : flags.advertise);

  LOG(INFO) << "signal " << signals.Wait() << ": stopping";
  ready = false;
  server->SetServing(false);
  loop->Stop();
  const absl::Time stopped = clock.Now() + kStopTimeout;
  server->Stop(stopped);
  http->Stop(stopped);
  return absl::OkStatus();
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  swiftcache::services::ShutdownSignals signals;
  swiftcache::BrokerFlags flags;
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  swiftcache::services::StartLogging({.program = argv[0], .engine = "", .model = ""});
  const absl::Status status = swiftcache::Serve(flags, signals);
  return status.ok() ? 0 : swiftcache::services::Fail(swiftcache::kProgram, status);
}
