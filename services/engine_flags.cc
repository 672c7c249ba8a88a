// SPDX-License-Identifier: Apache-2.0
#include "services/engine_flags.h"

#include <filesystem>
#include <limits>

#include "engine/transport/shm_address.h"
#include "services/flags.h"

namespace swiftcache::services {
namespace {

constexpr int64_t kAnyCount = std::numeric_limits<int32_t>::max();

// The file without .gguf, or the folder: what a user would call it.
std::string NameOfModel(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

}  // namespace

void EngineFlags::ParseSharing(Flags& flags) {
  shm_dir = engine::transport::DefaultShmDir();
  flags.Choice(
      "transport", &transport, {"auto", "none", "shm", "cuda_ipc", "nccl"},
      "how KV memory is lent to and leased from other engines; shm between CPUs, cuda_ipc (mapped) or nccl (sent) "
      "between GPUs; auto: shm or cuda_ipc, where there is a broker and a prefix cache; none: not at all");
  flags.Switch("lend", &lend, "lend KV memory that this engine does not need to others");
  flags.Bytes("lend_reserve", &lend_reserve_bytes, 0, int64_t{1} << 50,
              "of --kv_cache_bytes, what is never lent, however idle it is; as much or more: nothing is lent");
  flags.Switch("borrow", &engine.borrow, "ask others for KV memory where the own is short");
  flags.Choice("stream", &stream, {"auto", "lsc", "in_place"},
               "how leased KV is read: lsc brings it layer by layer into own memory (the paper's layer stream cache), "
               "in_place reads "
               "it where it is mapped; auto: in_place, but lsc from a GPU behind a link that is slow, as measured");
  flags.Text("shm_dir", &shm_dir,
             "folder of the lease sockets, the same for all engines that share KV memory or a GPU");
  flags.Duration("revoke_deadline", &engine.revoke_deadline, absl::Milliseconds(1), absl::Minutes(1),
                 "a borrower has so long to give a lease back; then it is taken back without it");
  flags.Switch("scrub_on_return", &engine.scrub_on_return, "zero KV memory when it changes hands");
  flags.Switch("remap_on_return", &remap_on_return,
               "KV memory that comes back from a lease is exchanged for other memory, so that who borrowed it sees "
               "nothing more of it; shm shows a borrower its lease and nothing beside it, too; not with nccl, which "
               "shows nobody any memory");
  flags.Integer("link_gbps", &link_gbps, 0, 1 << 20,
                "Gbit/s to which transfers are throttled, as if they crossed such a link; 0: as fast as memory");
  // Half of what a borrower waits for a store (exec::LeaseCopies): else every donor would pass for one that stands still.
  flags.Duration("link_latency", &link_latency, absl::ZeroDuration(), absl::Milliseconds(500),
                 "added to each transfer, as if it crossed such a link");
}

std::optional<int> EngineFlags::Parse(int argc, char** argv) {
  Flags flags("swiftcache-engine", "Serves one model: token ids in, token ids out.");
  flags.Required("model", &model, "GGUF file, or Hugging Face folder");
  flags.Name("model_name", &model_name, "what clients call the model; default: the file's or folder's name");
  flags.Name("name", &name, "of this engine in the cluster; default: model_name, then model_name-2, -3, ...");
  flags.Choice("backend", &backend, {"auto", "cpu", "cuda"},
               "what computes; auto: a GPU where there is one and this build has CUDA, else the CPU");
  flags.Switch("cuda_graphs", &cuda_graphs,
               "give steps of decoding that are alike to a GPU as graphs; without effect on a CPU");
  flags.Choice("dtype", &dtype, {"auto", "bf16", "f32"},
               "of weights in matrix products: bf16 rounds those that the file has finer (a CPU reads quantised ones "
               "as stored), "
               "f32 rounds none; auto: bf16");
  flags.Choice(
      "activations", &activations, {"auto", "f32", "bf16", "int8"},
      "on a CPU, what the other side of a product is rounded to where weights are not f32: int8: to 8 bits "
      "beside quantised weights; bf16: where the processor multiplies bf16; f32: not at all; auto: as int8, but "
      "queries, keys, values and logits, which weigh most, to 16 bits or as bf16");
  flags.Choice("isa", &isa, {"auto", "baseline", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"},
               "on a CPU, the best instructions to use; auto: the processor's best");
  flags.Integer(
      "threads", &threads, 0, 1024,
      "threads that compute; 0: the cores that it may use, which engines of one --shm_dir that compute divide");
  flags.Bytes("kv_cache_bytes", &engine.kv_cache_bytes, 1, int64_t{1} << 50,
              "memory for KV, taken at the start; default: what --gpu_memory_utilization leaves, on a CPU 1GiB");
  flags.Fraction(
      "gpu_memory_utilization", &engine.gpu_memory_utilization,
      "share of a GPU's memory to use in all: what the weights leave of it is for KV; without effect on a CPU");
  flags.Choice("kv_cache_dtype", &kv_cache_dtype, {"bf16", "f32", "int8"},
               "element type of the KV cache; int8: with a scale for each token and KV head, on a CPU alone");
  flags.Integer("block_tokens", &engine.block_tokens, 1, 4096,
                "tokens of a KV block; on a CPU multiples of 16 are read quickest");
  flags.Switch("enable_prefix_caching", &engine.enable_prefix_caching,
               "keep KV of ended requests for prompts that begin alike");
  flags.Integer("max_num_seqs", &engine.max_num_seqs, 1, kAnyCount, "sequences in one step");
  flags.Integer("max_num_batched_tokens", &engine.max_num_batched_tokens, 1, 1 << 20, "tokens in one step");
  flags.Duration(
      "target_itl", &engine.target_itl, absl::ZeroDuration(), absl::Hours(1),
      "a step computes fewer tokens of prompts where running streams would wait longer for theirs; 0s: never");
  flags.Integer("max_model_len", &engine.max_model_len_tokens, 0, kAnyCount,
                "prompt and output together; 0: what the model allows");
  flags.Duration(
      "max_tpot", &engine.max_tpot, absl::ZeroDuration(), absl::Hours(1),
      "a request that own memory does not hold is refused where each output token would take longer: what of "
      "its prompt's KV must lie in leases over the rate of the link to them; 0s: never");
  flags.Integer("max_waiting_requests", &engine.max_waiting_requests, 1, kAnyCount,
                "requests that may wait; more are refused");
  flags.Address("broker", &broker, "gRPC address of the broker; empty: alone", true);
  flags.Address("listen", &listen, "gRPC address; port 0 picks one");
  flags.Address("http_listen", &http_listen, "HTTP address of /live, /health and /metrics; port 0 picks one");
  flags.Address("advertise", &advertise, "gRPC address that others dial, where it differs from --listen", true);
  flags.Duration("drain_timeout", &drain_timeout, absl::ZeroDuration(), absl::Hours(24),
                 "after SIGTERM running requests have so long to finish");
  ParseSharing(flags);
  log.Declare(flags);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return exit_code;
  changed = flags.Changed();
  if (model_name.empty()) model_name = NameOfModel(model);
  using engine::backend::KvDtype;
  for (const KvDtype known : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kInt8}) {
    if (kv_cache_dtype == NameOf(known)) engine.kv_cache_dtype = known;
  }
  engine.share = transport == "auto" ? !broker.empty() && engine.enable_prefix_caching : transport != "none";
  using engine::exec::StreamMode;
  engine.stream = stream == "lsc" ? StreamMode::kLsc : stream == "in_place" ? StreamMode::kInPlace : StreamMode::kAuto;
  return std::nullopt;
}

engine::models::ComputeDtype EngineFlags::compute_dtype() const {
  using engine::models::ComputeDtype;
  return dtype == "f32" ? ComputeDtype::kF32 : dtype == "bf16" ? ComputeDtype::kBf16 : ComputeDtype::kAuto;
}

}  // namespace swiftcache::services
