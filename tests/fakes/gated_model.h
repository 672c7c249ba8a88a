// SPDX-License-Identifier: Apache-2.0
// A model whose steps hang while its gate is closed, in the midst of a batch: between two layers.
//
//   Gate gate;
//   auto model = std::make_unique<GatedModel>(std::move(real_model), gate);
//   gate.Close();
//   EXPECT_TRUE(gate.WaitUntilSomebodyHangs());  // the loop hangs now
//   gate.Open();
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/models/model.h"
#include "tests/fakes/gate.h"

namespace swiftcache {

/// Thread-safety: none. Ownership: owns the model, borrows the gate. Errors: the model's.
class GatedModel final : public engine::models::Model {
 public:
  GatedModel(std::unique_ptr<engine::models::Model> model, Gate& gate) : model_(std::move(model)), gate_(gate) {}

  const engine::models::ModelGeometry& geometry() const override { return model_->geometry(); }
  engine::backend::Fence Run(const engine::models::ForwardBatch& batch, engine::backend::LayerGate* gate,
                             engine::models::ForwardResult& result) override {
    Hanging hanging{gate_, gate};
    return model_->Run(batch, &hanging, result);
  }

 private:
  // REQUIRES: a model that computes at once, since it asks within Run.
  struct Hanging final : engine::backend::LayerGate {
    Hanging(Gate& hangs, engine::backend::LayerGate* gate) : hangs(hangs), gate(gate) {}
    engine::backend::Fence Arrived(int64_t layer) override {
      if (layer > 0) hangs.Pass();
      return gate != nullptr ? gate->Arrived(layer) : engine::backend::Fence();
    }
    bool Read(int64_t layer, const engine::backend::Fence& read) override {
      return gate == nullptr || gate->Read(layer, read);
    }
    Gate& hangs;
    engine::backend::LayerGate* const gate;
  };

  const std::unique_ptr<engine::models::Model> model_;
  Gate& gate_;
};

}  // namespace swiftcache
