// SPDX-License-Identifier: Apache-2.0
// swiftcache-engine: serves one model. What can fail fails before a port is open: flags, checkpoint, memory, name.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/http/http_server.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/address.h"
#include "common/rpc/server.h"
#include "common/sync/slices.h"
#include "engine/backend/weight_report.h"
#include "engine/exec/engine.h"
#include "engine/loader/checkpoint.h"
#include "engine/memory/memory_limits.h"
#include "engine/models/create_model.h"
#include "engine/rpc/broker_client.h"
#include "engine/rpc/engine_service.h"
#include "services/engine_device.h"
#include "services/engine_flags.h"
#include "services/engine_sharing.h"
#include "services/server_shell.h"

namespace swiftcache {
namespace {

namespace exec = engine::exec;
namespace loader = engine::loader;
namespace models = engine::models;
namespace rpc = engine::rpc;

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

// The arena is taken already; a machine that cannot hold the weights beside it shall say so now.
absl::Status CheckModelFits(const loader::Checkpoint& checkpoint, const models::ModelOptions& options) {
  const int64_t wanted = models::PackedWeightBytes(*checkpoint.weights, options.dtype) +
                         models::ActivationBytes(checkpoint.config, options);
  const engine::memory::MemoryHeadroom room = engine::memory::ReadMemoryHeadroom({});
  if (wanted <= room.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("--model: its weights and activations take ", wanted, " bytes of memory; ", room.bytes,
                   " are available (", room.limited_by, ") beside --kv_cache_bytes: lower that, or free memory"));
}

// What others dial. A wildcard is no address: there it is the machine's name.
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
void GiveWay() {
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kComputeNiceness);
  AskForSlices(Slices::kUsual);
}

uint64_t RandomNumber() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

// Everything that needs no port.
struct Prepared {
  loader::Checkpoint checkpoint;
  std::unique_ptr<engine::backend::Device> device;  // outlives the engine
  exec::EngineOptions options;
  std::optional<exec::Reservation> reservation;
  models::ModelOptions model;
  rpc::SerializedCard card;
  std::unique_ptr<rpc::BrokerClient> broker;
  std::string name, instance_id;
};

absl::StatusOr<Prepared> Prepare(const services::EngineFlags& flags) {
  Prepared p;
  p.options = flags.engine;
  p.options.at_loop_start = GiveWay;
  ASSIGN_OR_RETURN(p.device, services::CreateDevice(flags));
  ASSIGN_OR_RETURN(p.checkpoint, loader::OpenCheckpoint(flags.model));
  p.options.eos_ids = p.checkpoint.config.eos_ids;
  ASSIGN_OR_RETURN(p.reservation, exec::Engine::Reserve(p.options, GeometryOf(p.checkpoint.config), *p.device));
  p.model = {.kv = p.reservation->layout,
             .max_batch_rows = p.options.max_num_batched_tokens,
             .max_logit_rows = p.options.max_num_seqs,  // one each, at most
             .dtype = flags.compute_dtype()};
  RETURN_IF_ERROR(CheckModelFits(p.checkpoint, p.model));
  ASSIGN_OR_RETURN(p.card, rpc::SerializeModelCard(p.checkpoint.card));
  p.instance_id = services::RandomId();
  p.broker = rpc::BrokerClient::Create({.broker = flags.broker, .instance_id = p.instance_id});
  const rpc::EngineDescription description{.name = flags.name.empty() ? flags.model_name : flags.name,
                                           .model_name = flags.model_name,
                                           .kv = p.reservation->layout,
                                           .num_blocks = p.reservation->num_blocks(),
                                           .max_model_len_tokens = p.reservation->max_model_len_tokens,
                                           .model_card_hash = p.card.hash};
  using NameChoice = rpc::BrokerClient::NameChoice;
  ASSIGN_OR_RETURN(p.name,
                   p.broker->Reserve(description, flags.name.empty() ? NameChoice::kWithSuffix : NameChoice::kExactly));
  NameEngine(p.name);
  p.options.scale_down_window = p.broker->terms().scale_down_window;
  return p;
}

// What the backend made of the file's weights: whoever compares answers with another server's looks here first.
void ReportWeights(const engine::backend::WeightReport& weights, Metrics& metrics) {
  const bool exact = weights.rounded == 0;
  LOG(INFO) << "weights: " << Describe(weights) << (exact ? "" : "; --dtype=f32 rounds nothing");
  metrics
      .Gauge("swiftcache_weights_info",
             "Formats of the weight matrices, in its labels: in the file, and as computed with",
             {{"stored", StoredFormats(weights)}, {"packed", weights.packed}, {"exact", exact ? "true" : "false"}})
      .Set(1);
}

absl::StatusOr<std::unique_ptr<exec::Engine>> Load(Prepared& p, services::EngineSharing* sharing, const Clock& clock,
                                                   Metrics& metrics) {
  ASSIGN_OR_RETURN(auto model, models::CreateModel(p.checkpoint.config, *p.checkpoint.weights, *p.device, p.model));
  p.checkpoint.weights.reset();
  ReportWeights(model->weights(), metrics);
  return exec::Engine::Create(p.options, *std::move(p.reservation), std::move(model),
                              sharing == nullptr ? std::nullopt : std::optional(sharing->parts()), clock, metrics);
}

// `device_lost`: whether that is why it ends.
absl::Status Serve(const services::EngineFlags& flags, services::ShutdownSignals& signals, bool& device_lost) {
  const RealClock clock;
  ASSIGN_OR_RETURN(Prepared p, Prepare(flags));
  absl::Status lost;  // written before the signal that ends this process
  p.options.on_device_lost = [&lost](const absl::Status& why) {
    lost = why;
    services::ShutdownSignals::Raise();
  };
  Metrics metrics({{"model_name", flags.model_name}, {"engine", p.name}});
  std::unique_ptr<services::EngineSharing> sharing;  // before the engine, which borrows it
  if (p.options.share) {
    ASSIGN_OR_RETURN(sharing,
                     services::EngineSharing::Create({.name = p.name, .instance_id = p.instance_id, .flags = &flags},
                                                     *p.reservation, *p.broker, clock, metrics));
  }
  std::unique_ptr<exec::Engine> engine;  // before the doors, which borrow it
  std::atomic<bool> ready = false;
  rpc::EngineDoor door({.vocab_size = p.checkpoint.config.vocab_size}, p.card, RandomNumber);
  HttpServer::Options http_options{.listen = flags.http_listen};
  http_options.ready = [&] { return ready.load(); };
  http_options.metrics = [&] {
    if (sharing) sharing->UpdateMetrics();
    return services::Scrape(metrics);
  };
  ASSIGN_OR_RETURN(auto http, HttpServer::Create(http_options, {}));
  ASSIGN_OR_RETURN(auto server, RpcServer::Create({.listen = flags.listen}, {&door}));
  services::PrintListening(server->address(), http->address());
  p.broker->Start();

  absl::Status loaded;
  p.model.unwanted = [&signals] { return signals.Pending(); };
  std::thread([&] {
    GiveWay();
    auto created = Load(p, sharing.get(), clock, metrics);
    loaded = created.status();
    if (created.ok()) engine = *std::move(created);
  }).join();
  if (signals.Pending()) {
    LOG(INFO) << "a signal came while the model was loading: nothing to drain";
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(loaded);
  engine->Start();
  if (sharing) sharing->Start([&](auto message) { engine->Tell(std::move(message)); });
  door.Open(*engine);
  server->SetServing(true);
  ready = true;
  const auto load = [&] {
    exec::EngineLoad load = engine->Load();
    if (sharing) load.reclaims = sharing->coordinator().reclaims().count;
    if (sharing) load.last_reclaim = sharing->coordinator().reclaims().last;
    return load;
  };
  p.broker->Ready(DialAddress(flags, server->address()), load,
                  sharing ? sharing->Describe() : rpc::SharingDescription());
  LOG(INFO) << kProgram << " " << kVersion << " serves " << flags.model_name << " as " << p.name << " with "
            << flags.threads << " threads, max_model_len=" << engine->max_model_len_tokens();

  const int signal = signals.Wait();
  ready = false;
  server->SetServing(false);
  LOG(INFO) << "signal " << signal << ": draining for at most " << flags.drain_timeout;
  p.broker->Draining();
  engine->Drain(clock.Now() + flags.drain_timeout);
  if (sharing) sharing->EndLeases();  // before the broker ends them: then their borrowers would lose what is in them
  p.broker->Leave();
  if (sharing) sharing->Stop();
  const absl::Time stopped = clock.Now() + kStopTimeout;
  server->Stop(stopped);
  http->Stop(stopped);
  device_lost = !lost.ok();
  return lost;
}

}  // namespace
}  // namespace swiftcache

int main(int argc, char** argv) {
  swiftcache::AskForSlices(swiftcache::Slices::kShort);
  swiftcache::services::ShutdownSignals signals;
  swiftcache::services::EngineFlags flags;
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  const std::string engine = flags.name.empty() ? flags.model_name : flags.name;
  swiftcache::services::StartLogging({.program = argv[0], .engine = engine, .model = flags.model_name});
  swiftcache::services::RaiseFileLimit();
  bool device_lost = false;
  const absl::Status status = swiftcache::Serve(flags, signals, device_lost);
  if (status.ok()) return 0;
  const int mistake = swiftcache::services::Fail(swiftcache::kProgram, status);
  return device_lost ? swiftcache::kDeviceLost : mistake;
}
