// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/known_model.h"

#include <algorithm>

namespace swiftcache::sim {

using engine::backend::DeviceAddress;
using engine::backend::LayerGate;
using engine::backend::StepSequence;
using engine::models::ForwardBatch;
using engine::models::ForwardResult;

namespace {

// Layers differ, so that none can be taken for another.
uint64_t KeyOf(uint64_t chain, int64_t layer) { return chain ^ static_cast<uint64_t>(layer) << 56; }
uint64_t ValueOf(int32_t token, int64_t layer) { return static_cast<uint64_t>(layer + 1) << 32 | token; }

}  // namespace

uint64_t KnownModel::Chain(uint64_t before, int32_t token) {
  uint64_t value = (before ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15;
  return value ^ value >> 29;
}

engine::backend::Fence KnownModel::Run(const ForwardBatch& batch, LayerGate* gate, ForwardResult& result) {
  result = {};
  if (options_.channels.BeginReads(batch.checks)) {
    Compute(batch, gate, result);
  } else {
    result.status = absl::InternalError("must not be read");
  }
  options_.channels.EndReads();
  return {};
}

void KnownModel::Compute(const ForwardBatch& batch, LayerGate* gate, ForwardResult& result) {
  const bool looks_early = options_.bug == PlantedBug::kOnlyFirstCheck;
  if (looks_early) Check(batch, result);
  for (int64_t layer = batch.first_piece; layer < kLayers && !result.cut_short; ++layer) {
    options_.pass(options_.layer_time());
    Write(batch, layer);
    if (gate != nullptr) gate->Arrived(layer).Wait();
    Read(batch, layer);
    result.pieces = layer + 1;
    result.cut_short = gate != nullptr && !gate->Read(layer, {});
  }
  if (!looks_early) Check(batch, result);
  if (result.cut_short) return;
  Tally& tally = options_.tally;
  tally.local_reads += static_cast<int64_t>(batch.sequences.size());
  tally.remote_reads += static_cast<int64_t>(batch.checks.size() - result.changed.size());
  tally.remote_reads_failed += static_cast<int64_t>(result.changed.size());
  for (const engine::backend::SampleRow& sample : batch.samples) {
    result.tokens.push_back(engine::sample::SampledToken{.token_id = TokenAfter(batch.logit_rows[sample.logits_row])});
  }
}

// Of K; V is half a slice on.
DeviceAddress KnownModel::Cell(const StepSequence& sequence, int64_t layer, int64_t position) const {
  const int64_t block = position / options_.block_tokens, row = position % options_.block_tokens;
  return sequence.blocks[block] + layer * Layout(options_.block_tokens).slice_bytes() + row * 8;
}

void KnownModel::Write(const ForwardBatch& batch, int64_t layer) {
  const int64_t to_value = Layout(options_.block_tokens).slice_bytes() / 2;
  if (layer == 0) readings_.assign(batch.sequences.size(), {});
  int64_t row = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& sequence = batch.sequences[i];
    Reading& reading = readings_[i];
    if (layer == 0) {
      reading.first_row = row;
      const int64_t before = sequence.context_tokens;
      uint64_t chain = before == 0 ? kRoot : *WordAt(Cell(sequence, 0, before - 1));
      for (int64_t r = 0; r < sequence.num_rows; ++r) {
        reading.chains.push_back(chain = Chain(chain, batch.token_ids[row + r]));
      }
    }
    for (int64_t r = 0; r < sequence.num_rows; ++r) {
      const DeviceAddress key = Cell(sequence, layer, sequence.context_tokens + r);
      options_.channels.NoteWrite(key, 8);
      *WordAt(key) = KeyOf(reading.chains[r], layer);
      *WordAt(key + to_value) = ValueOf(batch.token_ids[row + r], layer);
    }
    row += sequence.num_rows;
  }
}

void KnownModel::Read(const ForwardBatch& batch, int64_t layer) {
  const int64_t to_value = Layout(options_.block_tokens).slice_bytes() / 2;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const StepSequence& sequence = batch.sequences[i];
    uint64_t chain = kRoot;
    for (int64_t position = 0; position < sequence.context_tokens + sequence.num_rows; ++position) {
      const DeviceAddress key = Cell(sequence, layer, position);
      const auto token = static_cast<int32_t>(*WordAt(key + to_value));
      chain = Chain(chain, token);
      readings_[i].wrong |= *WordAt(key) != KeyOf(chain, layer) || *WordAt(key + to_value) != ValueOf(token, layer);
    }
    readings_[i].wrong |= chain != readings_[i].chains.back();
  }
}

void KnownModel::Check(const ForwardBatch& batch, ForwardResult& result) {
  for (size_t i = 0; i < batch.checks.size(); ++i) {
    if (!batch.checks[i].Holds()) result.changed.push_back(static_cast<int32_t>(i));
  }
}

int32_t KnownModel::TokenAfter(int64_t row) const {
  const auto next = std::find_if(readings_.begin(), readings_.end(),
                                 [row](const Reading& reading) { return reading.first_row > row; });
  const Reading& reading = *std::prev(next);
  return reading.wrong ? kWrong : Next(reading.chains[row - reading.first_row]);
}

}  // namespace swiftcache::sim
