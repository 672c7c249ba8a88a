// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/library_gemm.h"

#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

namespace swiftcache {

struct LibraryGemm::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::memory in, weight, out;
  dnnl::matmul product;
};

LibraryGemm::LibraryGemm(int64_t rows, int64_t inputs, int64_t outputs, bool bf16)
    : state_(std::make_unique<State>()), flops_(2.0 * rows * inputs * outputs) {
  using dnnl::memory;
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc in({rows, inputs}, type, memory::format_tag::ab);
  const memory::desc weight({inputs, outputs}, type, memory::format_tag::any);
  const memory::desc out({rows, outputs}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(in, weight, out), state_->engine);
  state_->in = memory(description.src_desc(), state_->engine);
  state_->weight = memory(description.weights_desc(), state_->engine);
  state_->out = memory(description.dst_desc(), state_->engine);
  // Small ones: bf16 0x3c00 = 2^-7, and the same bytes twice are a small f32 too.
  for (memory* m : {&state_->in, &state_->weight}) {
    auto* halves = static_cast<uint16_t*>(m->get_data_handle());
    for (size_t i = 0; i < m->get_desc().get_size() / 2; ++i) halves[i] = 0x3c00;
  }
  state_->product = dnnl::matmul(description);
  Run();
}

LibraryGemm::~LibraryGemm() = default;
LibraryGemm::LibraryGemm(LibraryGemm&&) noexcept = default;

void LibraryGemm::Run() {
  state_->product.execute(
      state_->stream, {{DNNL_ARG_SRC, state_->in}, {DNNL_ARG_WEIGHTS, state_->weight}, {DNNL_ARG_DST, state_->out}});
  state_->stream.wait();
}

void LimitLibraryToAvx2() { dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2); }

}  // namespace swiftcache
