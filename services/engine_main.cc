// SPDX-License-Identifier: Apache-2.0
// swiftcache-engine: serves one model. Errors that can be found at once (flags, checkpoint, memory) end it before a
// port is open. Then it loads the weights, allocates KV memory in what they leave, registers its name at the broker,
// and serves.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/instance_token.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/http/http_metrics.h"
#include "common/http/http_server.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/address.h"
#include "common/rpc/server.h"
#include "common/sync/scheduler_slice.h"
#include "engine/backend/backend.h"
#include "engine/backend/device.h"
#include "engine/backend/weight_report.h"
#include "engine/exec/engine.h"
#include "engine/exec/engine_memory.h"
#include "engine/exec/request_check.h"
#include "engine/loader/checkpoint.h"
#include "engine/memory/memory_limits.h"
#include "engine/memory/start_turn.h"
#include "engine/models/create_model.h"
#include "engine/rpc/broker_client.h"
#include "engine/rpc/engine_service.h"
#include "engine/transport/shm_address.h"
#include "services/engine_device.h"
#include "services/engine_flags.h"
#include "services/engine_sharing.h"
#include "services/process_metrics.h"
#include "services/server_shell.h"

namespace swiftcache {
namespace {

namespace exec = engine::exec;
namespace loader = engine::loader;
namespace models = engine::models;
namespace rpc = engine::rpc;
using engine::memory::StartTurn;

constexpr char kProgram[] = "swiftcache-engine";
constexpr int kDeviceLost = 3;                             // exit code
constexpr absl::Duration kStopTimeout = absl::Seconds(2);  // for calls that are done but not yet read

models::ModelGeometry GeometryOf(const loader::ModelConfig& config) {
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .vocab_size = config.vocab_size,
          .max_context_tokens = config.max_position};
}

// The address that others dial: if the server listens on a wildcard, that is the machine's name.
std::string DialAddress(const services::EngineFlags& flags, const std::string& listening) {
  if (!flags.advertise.empty()) return flags.advertise;
  absl::StatusOr<HostPort> where = HostPort::Parse(listening);
  char hostname[256] = "";
  if (!where.ok() || (where->host != "0.0.0.0" && where->host != "::")) return listening;
  if (gethostname(hostname, sizeof(hostname) - 1) != 0) return listening;
  where->host = hostname;
  return where->ToString();
}

constexpr int kComputeNiceness = 5;  // a third of the share of others on the same core

// This thread, and those that it will start, compute: they give way to those that move tokens, answer pings and fence
// leases.
void LowerPriority() {
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kComputeNiceness);
  SetSchedulerSlice(SchedulerSlice::kDefault);
}

uint64_t RandomNumber() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

// Everything that needs neither port nor weights.
struct Prepared {
  loader::Checkpoint checkpoint;
  std::unique_ptr<services::EngineDevice> device;  // outlives the engine
  StartTurn::Options start;
  exec::EngineOptions options;
  models::ModelOptions model;
  rpc::SerializedCard card;
};

// What engines that wait for this one say of it: of which container it is, too.
std::string WhoStarts(const services::EngineFlags& flags) {
  char hostname[256] = "";
  (void)gethostname(hostname, sizeof(hostname) - 1);
  return absl::StrCat("engine ", flags.wanted_name(), " (process ", getpid(), " of ", hostname, ")");
}

// Checked before time is spent on loading. How much memory a GPU has left is known only when the weights are loaded.
absl::Status CheckMachineMemory(const Prepared& p) {
  if (p.device->device().memory()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t kv_bytes, exec::KvCacheBytes(p.options, p.model.kv, p.device->device()));
  const int64_t model_bytes = models::PackedWeightBytes(*p.checkpoint.weights, p.model.dtype, p.device->device()) +
                              models::ActivationBytes(p.checkpoint.config, p.model);
  const engine::memory::MemoryHeadroom room = engine::memory::ReadMemoryHeadroom({});
  if (kv_bytes + model_bytes <= room.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("--kv_cache_bytes wants ", kv_bytes, " bytes of memory, beside ",
                                                   model_bytes, " for weights and activations of --model; ", room.bytes,
                                                   " are available (", room.limited_by,
                                                   "): lower --kv_cache_bytes, take a smaller model, or free memory"));
}

absl::StatusOr<Prepared> Prepare(const services::EngineFlags& flags) {
  Prepared p;
  p.options = flags.engine;
  p.options.at_loop_start = LowerPriority;
  ASSIGN_OR_RETURN(p.device, services::CreateEngineDevice(flags));
  const std::optional<engine::backend::DeviceMemory> memory = p.device->device().memory();
  p.start = {.folder = flags.shm_dir, .device_id = memory ? memory->id : "", .holder = WhoStarts(flags)};
  ASSIGN_OR_RETURN(p.checkpoint, loader::OpenCheckpoint(flags.model));
  p.options.eos_ids = p.checkpoint.config.eos_ids;
  const models::ModelGeometry geometry = GeometryOf(p.checkpoint.config);
  RETURN_IF_ERROR(exec::CheckOptions(p.options, geometry));
  if (p.options.share) {
    const std::string socket = engine::transport::ShmSocketPath(flags.shm_dir, flags.wanted_name());
    RETURN_IF_ERROR(engine::transport::ShmAddress(socket).status());
  }
  p.model = {.kv = exec::KvLayoutOf(p.options, geometry),
             .max_batch_rows = p.options.max_num_batched_tokens,
             .max_logit_rows = p.options.max_num_seqs,  // one each, at most
             .dtype = flags.compute_dtype()};
  RETURN_IF_ERROR(CheckMachineMemory(p));
  ASSIGN_OR_RETURN(p.card, rpc::SerializeModelCard(p.checkpoint.card));
  return p;
}

// Where no file can be had for it, as with a --shm_dir that cannot be written, the engine starts all the same.
absl::StatusOr<StartTurn> WaitForTurn(const Prepared& p) {
  absl::StatusOr<StartTurn> turn = StartTurn::Take(p.start, p.model.unwanted);
  if (turn.ok() || absl::IsCancelled(turn.status())) return turn;
  LOG(WARNING) << "an engine that starts on the same device at the same time may take the memory that this one counts "
               << "on: " << turn.status().message();
  return StartTurn();
}

// What is loaded on the device.
struct Loaded {
  std::unique_ptr<models::Decoder> model;
  exec::EngineMemory memory;
};

// Weights first: KV memory gets what they leave. What is free on the device then is this engine's, since no other that
// starts there takes any before this one has what it wants. The log line about weights explains outputs that differ from
// another server's: it says whether weights were rounded.
absl::StatusOr<Loaded> Load(Prepared& p) {
  ASSIGN_OR_RETURN(const StartTurn turn, WaitForTurn(p));
  Loaded loaded;
  ASSIGN_OR_RETURN(loaded.model,
                   models::CreateModel(p.checkpoint.config, *p.checkpoint.weights, p.device->device(), p.model));
  p.checkpoint.weights.reset();
  const engine::backend::WeightReport& weights = loaded.model->weights();
  LOG(INFO) << "weights: " << Describe(weights) << (weights.rounded == 0 ? "" : "; --dtype=f32 rounds no weight");
  ASSIGN_OR_RETURN(loaded.memory, exec::CreateEngineMemory(p.options, loaded.model->geometry(), p.device->device()));
  LOG(INFO) << "KV memory: " << loaded.memory.num_blocks() << " blocks of " << p.options.block_tokens << " tokens, "
            << loaded.memory.kv->bytes() << " bytes";
  return loaded;
}

// On a thread of its own: the threads that the backend starts inherit its low priority.
absl::StatusOr<Loaded> LoadAtLowPriority(Prepared& p) {
  absl::StatusOr<Loaded> loaded = Loaded();
  std::thread([&] {
    LowerPriority();
    loaded = Load(p);
  }).join();
  return loaded;
}

// Reserves the engine's name.
absl::StatusOr<std::string> Register(const services::EngineFlags& flags, const Prepared& p,
                                     const exec::EngineMemory& memory, rpc::BrokerClient& broker) {
  const rpc::EngineDescription description{.name = flags.wanted_name(),
                                           .model_name = flags.model_name,
                                           .kv = memory.layout,
                                           .num_blocks = memory.num_blocks(),
                                           .max_model_len_tokens = memory.max_model_len_tokens,
                                           .model_card_hash = p.card.hash};
  using NameChoice = rpc::BrokerClient::NameChoice;
  ASSIGN_OR_RETURN(std::string name,
                   broker.Reserve(description, flags.name.empty() ? NameChoice::kWithSuffix : NameChoice::kExactly));
  broker.Start();
  return name;
}

// A name that an engine of --shm_dir has is taken, though no broker knows of it.
absl::StatusOr<std::string> NameInstead(const absl::Status& why, rpc::BrokerClient& broker) {
  std::optional<std::string> next = absl::IsAlreadyExists(why) ? broker.TakeNextName() : std::nullopt;
  if (!next) return why;
  LOG(INFO) << "another engine of this --shm_dir has that name: this one is called " << *next;
  return *std::move(next);
}

// How the backend stores the file's weights.
void ExportWeights(const engine::backend::WeightReport& weights, Metrics& metrics) {
  const bool exact = weights.rounded == 0;
  metrics
      .Gauge("swiftcache_weights_info",
             "Formats of the weight matrices, in its labels: in the file, and as computed with",
             {{"stored", StoredFormats(weights)}, {"packed", weights.packed}, {"exact", exact ? "true" : "false"}})
      .Set(1);
}

// What computes, from names such as cpu/avx512_bf16/bf16 and cuda/sm_90/bf16.
Metrics::Labels BuildLabels(const engine::backend::Backend& backend) {
  const std::vector<std::string> parts = absl::StrSplit(backend.name(), '/');
  return {{"backend", parts[0]}, {"isa", parts.size() > 1 ? parts[1] : ""}, {"activations", backend.weights().rows}};
}

void ExportHeartbeatAge(const rpc::BrokerClient& broker, Metrics& metrics) {
  const std::optional<absl::Duration> age = broker.heartbeat_age();
  if (!age) return;
  metrics.Gauge("swiftcache_heartbeat_age_seconds", "Since the broker last took a heartbeat of this engine")
      .Set(absl::ToDoubleSeconds(*age));
}

absl::Status Serve(const services::EngineFlags& flags, services::ShutdownSignals& signals) {
  const RealClock clock;
  ASSIGN_OR_RETURN(Prepared p, Prepare(flags));
  absl::Status lost;  // written before the signal that ends this process
  p.options.on_device_lost = [&lost](const absl::Status& why) {
    lost = why;
    services::ShutdownSignals::Raise();
  };
  p.model.unwanted = [&signals] { return signals.Pending(); };
  const std::string token = services::RandomId() + services::RandomId(), instance_id = InstanceIdOf(token);
  const auto broker = rpc::BrokerClient::Create({.broker = flags.broker, .instance_id = instance_id, .token = token});
  std::optional<Metrics> metrics;
  Metrics of_start(Metrics::Labels{{"model_name", flags.model_name}});  // until it has a name
  HttpMetrics http_metrics;
  std::unique_ptr<services::EngineSharing> sharing;  // before the engine, which borrows it
  std::unique_ptr<exec::Engine> engine;              // before the doors, which borrow it
  std::atomic<bool> measured = false, ready = false, draining = false;
  Metrics::Labels build;  // written before `measured`
  const rpc::WireLimits limits{.model_name = flags.model_name, .model_card_hash = p.card.hash};
  rpc::EngineDoor door(limits, p.card, instance_id, RandomNumber);
  HttpServer::Options http_options{.listen = flags.http_listen};
  http_options.max_connections = services::HttpConnections(http_options.max_connections);
  http_options.ready = [&] { return ready.load(); };
  http_metrics.Watch(http_options);
  http_options.metrics = [&]() -> std::string {
    if (!measured) return services::Scrape(of_start, {.program = kProgram, .draining = draining});
    if (sharing) sharing->UpdateMetrics();
    http_metrics.Export(*metrics);
    ExportHeartbeatAge(*broker, *metrics);
    engine->UpdateMetrics();
    return services::Scrape(*metrics, {.program = kProgram, .ready = ready, .draining = draining, .build = build});
  };
  ASSIGN_OR_RETURN(auto http, HttpServer::Create(http_options, {}));
  ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = flags.listen}, {&door}));

  absl::StatusOr<Loaded> loaded = LoadAtLowPriority(p);
  if (signals.Pending()) {
    LOG(INFO) << "a signal came while the model was loading: nothing to drain";
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(loaded.status());
  ASSIGN_OR_RETURN(std::string name, Register(flags, p, loaded->memory, *broker));
  for (;;) {
    NameEngine(name);
    metrics.emplace(Metrics::Labels{{"model_name", flags.model_name}, {"engine", name}});
    if (!p.options.share) break;
    auto created =
        services::EngineSharing::Create({.name = name, .instance_id = instance_id, .token = token, .flags = &flags},
                                        *p.device, loaded->memory, *broker, clock, *metrics);
    if (created.ok()) {
      sharing = *std::move(created);
      break;
    }
    ASSIGN_OR_RETURN(name, NameInstead(created.status(), *broker));
  }
  ExportWeights(loaded->model->weights(), *metrics);
  build = BuildLabels(loaded->model->backend());
  engine = exec::Engine::Create(p.options, std::move(loaded->memory), std::move(loaded->model),
                                sharing ? std::optional(sharing->parts()) : std::nullopt, clock, *metrics);
  measured = true;
  services::PrintListening(server->address(), http->address());
  engine->Start();
  if (sharing) sharing->Start([&](auto message) { engine->Post(std::move(message)); });
  door.Open(*engine);
  server->SetServing(true);
  ready = true;
  const auto load = [&] {
    exec::EngineLoad load = engine->Load();
    if (sharing) load.reclaims = sharing->coordinator().reclaims().count;
    if (sharing) load.last_reclaim = sharing->coordinator().reclaims().last;
    return load;
  };
  broker->Ready(DialAddress(flags, server->address()), load, sharing ? sharing->Describe() : rpc::SharingDescription());
  LOG(INFO) << kProgram << " " << kVersion << " serves " << flags.model_name << " as " << name
            << ", max_model_len=" << engine->max_model_len_tokens();

  const int signal = signals.Wait();
  ready = false;
  draining = true;
  server->SetServing(false);
  LOG(INFO) << "signal " << signal << ": draining for at most " << flags.drain_timeout;
  broker->Draining();
  const absl::Time drained = lost.ok() ? clock.Now() + flags.drain_timeout : clock.Now();
  if (!lost.ok()) engine->ShutDown(drained);  // its loop can move nothing any more
  if (sharing) sharing->AskBackAll(drained);
  engine->Drain(drained);
  if (sharing) sharing->EndLeases(drained);  // with the loop alive, which moves what is in them
  engine->ShutDown(clock.Now());
  broker->Leave();
  if (sharing) sharing->Stop();
  door.CloseStreams();
  const absl::Time stopped = clock.Now() + kStopTimeout;
  server->Stop(stopped);
  http->Stop(stopped);
  return lost;
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  swiftcache::services::PrepareProcess();
  swiftcache::services::ShutdownSignals signals;
  swiftcache::services::EngineFlags flags;
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  swiftcache::services::StartLogging(
      flags.log.Options({.program = argv[0], .engine = flags.wanted_name(), .model = flags.model_name}));
  LOG(INFO) << "flags: " << flags.changed;
  swiftcache::services::RaiseFileLimit();
  const absl::Status status = swiftcache::Serve(flags, signals);
  if (status.ok()) return 0;
  const int mistake = swiftcache::services::Fail(swiftcache::kProgram, status);
  return swiftcache::engine::backend::IsDeviceLost(status) ? swiftcache::kDeviceLost : mistake;  // at start, too
}
