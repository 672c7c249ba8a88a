// SPDX-License-Identifier: Apache-2.0
// swiftcache-model-logits for llama.cpp, as its users run it: KV in f16 or q8_0, all else as the library chooses. Not
// part of our build: tests/bench/llama.sh compiles it with the llama.cpp that it has built.
//
//   llama-logits MODEL.gguf ids.txt logits.f32 f16|q8_0
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  const std::string kv = argc == 5 ? argv[4] : "";
  if (kv != "f16" && kv != "q8_0") {
    return std::fprintf(stderr, "usage: llama-logits MODEL.gguf ids.txt logits.f32 f16|q8_0\n"), 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return std::fprintf(stderr, "llama-logits: cannot load %s\n", argv[1]), 2;
  const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::ifstream in(argv[2]);
  std::ofstream out(argv[3], std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::vector<llama_token> ids;
    for (llama_token id = 0; words >> id;) ids.push_back(id);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(std::max<size_t>(256, ids.size()));
    params.type_k = params.type_v = kv == "f16" ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
    params.n_threads = params.n_threads_batch = 2;
    llama_context* context = llama_init_from_model(model, params);
    constexpr int32_t kChunk = 256;
    for (size_t at = 0; at < ids.size(); at += kChunk) {
      llama_batch batch = llama_batch_init(kChunk, 0, 1);
      batch.n_tokens = static_cast<int32_t>(std::min<size_t>(kChunk, ids.size() - at));
      for (int32_t i = 0; i < batch.n_tokens; ++i) {
        batch.token[i] = ids[at + i];
        batch.pos[i] = static_cast<llama_pos>(at + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
      }
      if (llama_decode(context, batch) != 0) return std::fprintf(stderr, "llama-logits: decode failed\n"), 2;
      for (int32_t i = 0; i < batch.n_tokens; ++i) {
        out.write(reinterpret_cast<const char*>(llama_get_logits_ith(context, i)), vocabulary * sizeof(float));
      }
      llama_batch_free(batch);
    }
    llama_free(context);
  }
  out.close();
  return out ? 0 : 2;
}
