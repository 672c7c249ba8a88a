// SPDX-License-Identifier: Apache-2.0
// swiftcache-gateway: takes requests as text, finds an engine, relays the tokens.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/http/http_metrics.h"
#include "common/http/http_server.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "gateway/fleet/fleet.h"
#include "gateway/openai/door.h"
#include "gateway/relay/relay_impl.h"
#include "gateway/rpc/broker_watcher.h"
#include "gateway/rpc/generate_door.h"
#include "gateway/rpc/grpc_engine_client.h"
#include "services/flags.h"
#include "services/log_flags.h"
#include "services/process_metrics.h"
#include "services/server_shell.h"

namespace swiftcache {
namespace {

using gateway::fleet::EngineInfo;
using gateway::fleet::Fleet;

constexpr char kProgram[] = "swiftcache-gateway";
constexpr absl::Duration kFlushTimeout = absl::Seconds(1);  // for the last bytes of answers that have ended
constexpr int kHttpThreads = 4;                             // what a short prompt's tokenising takes delays no stream
constexpr int64_t kRequestRoomBytes = int64_t{4} << 20;     // of a request, beyond the text of the longest prompt

struct GatewayFlags {
  std::string listen = "127.0.0.1:50051", http_listen = "127.0.0.1:8000", advertise, broker = "127.0.0.1:50050";
  absl::Duration drain_timeout = absl::Seconds(30);
  gateway::relay::Limits limits;
  int64_t max_http_connections = 1024;
  services::LogFlags log;
  std::string changed;  // Flags::Changed

  std::optional<int> Parse(int argc, char** argv) {
    services::Flags flags(kProgram, "Takes requests as text, finds an engine, relays the tokens.");
    flags.Address("listen", &listen, "gRPC address; port 0 picks one");
    flags.Address("http_listen", &http_listen,
                  "HTTP address of the OpenAI API, /live, /health, /metrics; port 0 picks one");
    flags.Address("advertise", &advertise,
                  "gRPC address that clients dial, where it differs from --listen: logged, for operators", true);
    flags.Address("broker", &broker, "the broker's gRPC address");
    flags.Duration("drain_timeout", &drain_timeout, absl::ZeroDuration(), absl::Hours(24),
                   "requests under way at SIGTERM may take this long");
    flags.Bytes("max_prompt_bytes", &limits.max_prompt_bytes, 1, int64_t{60} << 20,
                "longer prompts are refused unread");
    flags.Integer("max_http_connections", &max_http_connections, 1, 65536,
                  "clients on HTTP at once, each answer that streams is one; more get 503, but for /live, /health, "
                  "/metrics; at most three quarters of the files that the gateway may open");
    log.Declare(flags);
    const std::optional<int> exit_code = flags.Parse(argc, argv);
    changed = flags.Changed();
    return exit_code;
  }
};

// Has the server report SERVING from when the fleet is ready until the end.
class Serving {
 public:
  void Of(RpcServer& server) {
    absl::MutexLock lock(&mutex_);
    server_ = &server;
    if (ready_) server_->SetServing(true);
  }
  void Begin() {
    absl::MutexLock lock(&mutex_);
    ready_ = true;
    if (server_ != nullptr) server_->SetServing(true);
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    std::exchange(server_, nullptr)->SetServing(false);
  }

 private:
  absl::Mutex mutex_;
  RpcServer* server_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<gateway::fleet::EngineClient> Dial(const EngineInfo& engine) {
  return gateway::rpc::GrpcEngineClient::Create({.address = engine.address,
                                                 .model_name = engine.model_name,
                                                 .card_hash = engine.model_card_hash,
                                                 .instance_id = engine.instance_id});
}

// Absent until there is a table.
void ExportTableAge(const Fleet& fleet, Metrics& metrics) {
  const std::optional<absl::Duration> age = fleet.table_age();
  if (!age.has_value()) return;
  metrics
      .Gauge("swiftcache_gateway_table_age_seconds",
             "Since the broker was last heard; 0 while it tells every change of its table of engines.")
      .Set(absl::ToDoubleSeconds(*age));
}

absl::Status Serve(const GatewayFlags& flags, services::ShutdownSignals& signals) {
  const RealClock clock;
  Metrics metrics;
  HttpMetrics http_metrics;
  std::atomic<bool> draining = false;
  const std::string instance = services::RandomId();
  Serving serving;
  ASSIGN_OR_RETURN(auto fleet, Fleet::Create({.on_ready = [&serving] { serving.Begin(); }}, Dial, clock));
  const gateway::relay::RelayImpl::Options relay_options{
      .limits = flags.limits, .id_prefix = instance, .first_engine = std::hash<std::string>()(instance)};
  ASSIGN_OR_RETURN(auto relay, gateway::relay::RelayImpl::Create(relay_options, *fleet, clock, metrics));
  prometheus::Counter& slow_readers = metrics.Counter(
      "swiftcache_gateway_slow_readers_cut_total",
      "gRPC clients that were cut as they left too much of the answer unread, or read nothing for two minutes.");
  gateway::rpc::GenerateDoor::Options grpc_options;
  grpc_options.stream.on_slow_reader_cut = [&slow_readers] { slow_readers.Increment(); };
  gateway::rpc::GenerateDoor door(*relay, grpc_options, clock);
  gateway::openai::Door::Options openai_options{.id_prefix = instance + "-http"};
  openai_options.limits.request = flags.limits;
  const int64_t max_held_answer_bytes = openai_options.max_held_answer_bytes;
  ASSIGN_OR_RETURN(auto openai, gateway::openai::Door::Create(std::move(openai_options), *relay, clock));
  const int64_t max_request_bytes = flags.limits.max_prompt_bytes + kRequestRoomBytes;
  HttpServer::Options http_options{.listen = flags.http_listen,
                                   .max_body_bytes = max_request_bytes,
                                   .max_connections = services::HttpConnections(flags.max_http_connections),
                                   .threads = kHttpThreads};
  http_options.max_all_unsent_bytes += max_held_answer_bytes;  // whole answers count in both until they are written
  const auto is_ready = [&] { return fleet->ready() && !draining; };
  http_options.ready = is_ready;
  http_metrics.Watch(http_options);
  http_options.metrics = [&] {
    http_metrics.Export(metrics);
    relay->UpdateMetrics();
    ExportTableAge(*fleet, metrics);
    return services::Scrape(metrics, {.program = kProgram, .ready = is_ready(), .draining = draining});
  };
  ASSIGN_OR_RETURN(auto http, HttpServer::Create(http_options, openai->Routes()));
  ASSIGN_OR_RETURN(
      auto server,
      RpcServer::Create({.listen = flags.listen, .max_request_bytes = static_cast<int>(max_request_bytes)}, {&door}));
  serving.Of(*server);
  auto watcher = gateway::rpc::BrokerWatcher::Create({.address = flags.broker}, *fleet);
  services::PrintListening(server->address(), http->address());
  LOG(INFO) << kProgram << " " << kVersion << " broker=" << flags.broker
            << " dial=" << (flags.advertise.empty() ? server->address() : flags.advertise);

  const int signal = signals.Wait();
  draining = true;
  relay->RefuseNew();  // before the line, so that a client that reads it is refused
  LOG(INFO) << "signal " << signal << ": draining for at most " << flags.drain_timeout;
  serving.End();
  // Its requests still move to other engines, of which the broker tells.
  relay->Stop(clock.Now() + flags.drain_timeout);
  watcher.reset();
  // No request is left: a client that still holds a stream (a health Watch, say) delays nothing but the flush.
  const absl::Time flushed = clock.Now() + kFlushTimeout;
  server->Stop(flushed);
  http->Stop(flushed);
  return absl::OkStatus();
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  swiftcache::services::PrepareProcess();
  swiftcache::services::ShutdownSignals signals;
  swiftcache::GatewayFlags flags;
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  swiftcache::services::StartLogging(flags.log.Options({.program = argv[0], .engine = "", .model = ""}));
  LOG(INFO) << "flags: " << flags.changed;
  swiftcache::services::RaiseFileLimit();
  const absl::Status status = swiftcache::Serve(flags, signals);
  return status.ok() ? 0 : swiftcache::services::Fail(swiftcache::kProgram, status);
}
