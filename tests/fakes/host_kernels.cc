// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/host_kernels.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "engine/backend/cuda/attention_products_body.h"
#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/quantized_body.h"
#include "engine/backend/weight_blocks.h"
#include "glog/logging.h"

namespace swiftcache::engine::backend::cuda {
namespace {

// What lies at a pointer of the device, where the host finds it.
template <class T>
T* Host(T* pointer) {
  if (pointer == nullptr) return nullptr;
  return reinterpret_cast<T*>(
      FakeCudaDriver::Host(reinterpret_cast<uint64_t>(const_cast<std::remove_const_t<T>*>(pointer))));
}

PackedWeights Host(PackedWeights weights) {
  weights.numbers = Host(weights.numbers);
  weights.halves = Host(weights.halves);
  return weights;
}

uint64_t HostNumber(uint64_t address) { return reinterpret_cast<uint64_t>(FakeCudaDriver::Host(address)); }

// The tables of a step, and the blocks of its sequences, as the host reads them.
struct HostTables {
  HostTables(const StepTables& tables, int64_t num_blocks) : tables(tables) {
    this->tables.sequence = Host(tables.sequence);
    this->tables.position = Host(tables.position);
    this->tables.first_block = Host(tables.first_block);
    const KvBlock* const from = Host(tables.blocks);
    for (int64_t i = 0; i < num_blocks; ++i) {
      blocks.push_back(from[i]);
      for (uint64_t& slice : blocks.back().slices) slice = HostNumber(slice);
    }
    this->tables.blocks = blocks.data();
  }
  StepTables tables;
  std::vector<KvBlock> blocks;
};

}  // namespace

absl::Status HostKernels::Decode(Stream stream, const DecodeOp& op) {
  return Launch(stream, [op] {
    WithType(op.number, [&](auto number) {
      const WeightBlock& shape = BlockOf(op.format);
      auto* out = Host(static_cast<decltype(number)*>(op.out));
      for (int64_t i = 0; i < op.num_blocks; ++i, out += shape.elements) {
        DecodeWeightBlock(op.format, Host(op.blocks) + i * shape.bytes,
                          [out](int element, float value) { Store(out + element, value); });
      }
    });
  });
}

absl::Status HostKernels::Unpack(Stream stream, const UnpackOp& op) {
  return Launch(stream, [op] {
    const PackedWeights from = Host(op.from);
    WithType(op.number, [&](auto number) {
      HostBlock block;
      for (int64_t row = 0; row < op.rows; ++row) {
        int64_t id = op.ids == nullptr ? row : Host(op.ids)[row];
        if (id < 0) id = Host(op.chosen)[-1 - id];
        auto* const out = Host(static_cast<decltype(number)*>(op.out)) + row * op.cols;
        if (IsQuantized(from.format)) {
          WithQuantized(from.format, [&](auto format) { UnpackRow<format()>(block, from, id, op.cols, out); });
        } else {
          WithType(NumberOf(from.format), [&](auto in) {
            ConvertRow(block, static_cast<const decltype(in)*>(from.numbers) + id * op.cols, op.cols, out);
          });
        }
      }
    });
  });
}

absl::Status HostKernels::Prepare(Stream stream, const PrepareOp& op) {
  return Launch(stream, [op] {
    WithType(op.number, [&](auto number) {
      HostBlock block;
      for (int64_t row = 0; row < op.rows; ++row) {
        auto* const out = Host(static_cast<decltype(number)*>(op.out)) + row * op.cols;
        if (op.prologue == Prologue::kSiluMul) {
          WithType(op.in_number, [&](auto in) {
            SiluMulRow(block, Host(static_cast<const decltype(in)*>(op.in)) + row * 2 * op.cols, op.cols, 0, op.cols,
                       out);
          });
          continue;
        }
        const float* const in = Host(static_cast<const float*>(op.in)) + row * op.cols;
        if (op.prologue == Prologue::kNone) ConvertRow(block, in, op.cols, out);
        if (op.prologue == Prologue::kRmsNorm) NormRow(block, in, Host(op.norm), op.cols, op.eps, out);
      }
    });
  });
}

absl::Status HostKernels::Keep(Stream stream, const KeepOp& op) {
  return Launch(stream, [op] {
    WithType(op.number, [&](auto number) {
      HostBlock block;
      KeepRowsOfColumns(block, Host(op.rows), op.num_rows, Host(static_cast<decltype(number)*>(op.data)), op.cols, 0,
                        op.cols);
    });
  });
}

absl::Status HostKernels::Multiply(Stream stream, const ProductOp& op) {
  return Launch(stream, [op] {
    WithType(op.number, [&](auto number) {
      const auto* const in = Host(static_cast<const decltype(number)*>(op.in));
      const auto* const weight = Host(static_cast<const decltype(number)*>(op.weight));
      for (int64_t row = 0; row < op.rows; ++row) {
        for (int64_t o = 0; o < op.outputs; ++o) {
          float sum = 0;
          for (int64_t i = 0; i < op.cols; ++i) sum += Load(in + row * op.cols + i) * Load(weight + o * op.cols + i);
          WithType(op.out_number, [&](auto out_number) {
            auto* const out = Host(static_cast<decltype(out_number)*>(op.out)) + row * op.out_cols + o;
            Store(out, sum + (op.bias == nullptr ? 0 : Host(op.bias)[o]) + (op.add ? Load(out) : 0));
          });
        }
      }
    });
  });
}

absl::Status HostKernels::MultiplyQuantized(Stream stream, const QuantizedProductOp& op) {
  return Launch(stream, [op] {
    QuantizedProductOp here = op;
    here.in = Host(op.in);
    here.weight = Host(op.weight);
    here.bias = Host(op.bias);
    here.out = Host(op.out);
    HostBlock block;
    WithQuantized(op.weight.format, [&](auto format) {
      for (int64_t first = 0; first < op.outputs; first += 16) {
        op.rows <= 8 ? MultiplyOutputs<format(), 1>(block, here, first)
                     : MultiplyOutputs<format(), 8>(block, here, first);
      }
    });
  });
}

absl::Status HostKernels::Rotations(Stream stream, const RotationsOp& op) {
  return Launch(stream, [op] {
    HostBlock block;
    for (int64_t row = 0; row < op.rows; ++row) {
      RotationsRow(block, Host(op.inverse_frequencies), op.half, Host(op.positions)[row],
                   Host(op.rotations) + row * 2 * op.half);
    }
  });
}

absl::Status HostKernels::RopeAndStore(Stream stream, const RotateOp& op) {
  return Launch(stream, [op] {
    const RopeStep& step = op.step;
    const HostTables host(step.tables, step.tables.num_blocks);
    RopeStep here = step;
    here.tables = host.tables;
    here.qkv = Host(step.qkv);
    here.q_norm = Host(step.q_norm);
    here.k_norm = Host(step.k_norm);
    here.rotations = Host(step.rotations);
    WithType(op.number, [&](auto kv) {
      HostBlock block;
      for (int64_t row = 0; row < op.rows; ++row) {
        for (int64_t head = 0; head < step.num_heads + 2 * step.kv.num_kv_heads; ++head) {
          RopeAndStoreHead<decltype(kv)>(block, here, row, head);
        }
      }
    });
  });
}

absl::Status HostKernels::Attend(Stream stream, const AttendOp& op) {
  CHECK(op.num_divided == 0 || op.most_parts > 0) << "divided tiles are merged in memory for most_parts, which is 0";
  return Launch(stream, [op] {
    const HostTables host(op.step.tables, op.step.tables.num_blocks);
    AttentionStep step = op.step;
    step.tables = host.tables;
    step.qkv = Host(op.step.qkv);
    step.out = Host(op.step.out);
    step.partial = Host(op.step.partial);
    struct alignas(128) Line {
      std::byte bytes[128];
    };
    std::vector<Line> memory(op.memory_bytes / sizeof(Line) + 1);
    HostBlock block;
    for (int64_t head = 0; head < step.kv.num_kv_heads; ++head) {
      for (int64_t i = 0; i < op.num_tiles; ++i) {
        const AttentionTile& tile = Host(op.tiles)[i];
        if (op.products) {
          WithProductShape(step.kv.head_dim, op.strip_rows, [&](auto dim, auto rows) {
            AttendTileByProducts<dim(), rows()>(block, memory.front().bytes, step, tile, head);
          });
          continue;
        }
        WithType(op.number, [&](auto kv) {
          AttendTile<decltype(kv)>(block, reinterpret_cast<float*>(memory.data()), step, tile, head);
        });
      }
      std::vector<float> merging(MergeBytes(op.most_parts) / sizeof(float));
      for (int64_t i = 0; i < op.num_divided; ++i) {
        for (int64_t query = 0; query < step.queries_in_memory(); ++query) {
          MergeParts(block, merging.data(), step, Host(op.divided)[i], head, query);
        }
      }
    }
  });
}

absl::Status HostKernels::Choose(Stream stream, const ChooseOp& op) {
  return Launch(stream, [op] {
    const auto memory = std::make_unique<ChoiceMemory>();
    HostBlock block;
    for (int64_t row = 0; row < op.rows; ++row) {
      TokenChoice choice = Host(op.choices)[row];
      choice.penalised = Host(choice.penalised);
      choice.seen = Host(choice.seen);
      ChosenToken* const result = op.results + row;
      ChooseToken(block, *memory, Host(op.logits) + choice.logits_row * op.vocab, op.vocab, choice, result,
                  op.top_ids + choice.first_top, op.top_logits + choice.first_top);
      Host(op.chosen)[row] = memory->id;
    }
  });
}

}  // namespace swiftcache::engine::backend::cuda
