// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/kernel_queue.h"

#include <glog/logging.h>

#include <algorithm>

#include "common/base/status_macros.h"

namespace swiftcache::engine::backend::cuda {

KernelQueue::KernelQueue(Driver& driver, Kernels& kernels, Stream stream, bool graphs)
    : driver_(driver), kernels_(kernels), stream_(stream), graphs_(graphs) {}

KernelQueue::~KernelQueue() {
  driver_.Finish(stream_);
  for (const std::vector<Place>& places : places_) {
    for (const Place& place : places) {
      for (const Variant& variant : place) {
        if (variant.graph) driver_.DestroyGraph(*variant.graph);
      }
    }
  }
}

void KernelQueue::BeginStep(int kind, bool repeats) {
  CHECK(calls_.empty());
  keeps_back_ = repeats && graphs_;
  kind_ = kind;
  place_ = 0;
}

absl::Status KernelQueue::Add(const KernelCall& call) {
  if (!keeps_back_) return Give(call);
  calls_.push_back(call);
  return absl::OkStatus();
}

absl::Status KernelQueue::Flush() {
  if (calls_.empty()) return absl::OkStatus();
  std::vector<Place>& places = places_[kind_];
  if (places.size() <= place_) places.resize(place_ + 1);
  bool is_new = false;
  Variant& variant = VariantAt(places[place_], is_new);
  ++place_;
  variant.used = ++flushes_;
  calls_.clear();
  if (is_new) return GiveAll(variant.calls);
  if (!variant.graph && !variant.refused) RETURN_IF_ERROR(Make(variant));
  return variant.graph ? driver_.LaunchGraph(stream_, *variant.graph) : GiveAll(variant.calls);
}

// The one with the calls that were kept back; a new one takes the place of the one that was not used for the longest.
KernelQueue::Variant& KernelQueue::VariantAt(Place& place, bool& is_new) {
  const auto same = std::find_if(place.begin(), place.end(), [&](const Variant& v) { return v.calls == calls_; });
  if (same != place.end()) return *same;
  is_new = true;
  if (place.size() < kVariants) return place.emplace_back(Variant{.calls = calls_});
  Variant& oldest =
      *std::min_element(place.begin(), place.end(), [](const Variant& a, const Variant& b) { return a.used < b.used; });
  if (oldest.graph) {
    driver_.Finish(stream_);  // it may be under way
    driver_.DestroyGraph(*oldest.graph);
  }
  oldest = Variant{.calls = calls_};
  return oldest;
}

// A capture that was begun is ended, whatever happens in it: the stream would take nothing else.
absl::Status KernelQueue::Make(Variant& variant) {
  absl::Status made = driver_.BeginCapture(stream_);
  if (made.ok()) {
    made = GiveAll(variant.calls);
    const absl::StatusOr<Graph> graph = driver_.EndCapture(stream_);
    if (made.ok() && graph.ok()) {
      variant.graph = *graph;
      return absl::OkStatus();
    }
    if (graph.ok()) driver_.DestroyGraph(*graph);
    if (made.ok()) made = graph.status();
  }
  if (IsDeviceLost(made)) return made;
  variant.refused = true;
  LOG_EVERY_T(WARNING, 60) << "the driver makes no graph of a step, whose kernels are given one by one: "
                           << made.message();
  return absl::OkStatus();
}

absl::Status KernelQueue::GiveAll(const std::vector<KernelCall>& calls) {
  for (const KernelCall& call : calls) RETURN_IF_ERROR(Give(call));
  return absl::OkStatus();
}

absl::Status KernelQueue::Give(const KernelCall& call) {
  struct To {
    Kernels& kernels;
    const Stream stream;
    absl::Status operator()(const UnpackOp& op) const { return kernels.Unpack(stream, op); }
    absl::Status operator()(const PrepareOp& op) const { return kernels.Prepare(stream, op); }
    absl::Status operator()(const ProductOp& op) const { return kernels.Multiply(stream, op); }
    absl::Status operator()(const QuantizedProductOp& op) const { return kernels.MultiplyQuantized(stream, op); }
    absl::Status operator()(const KeepOp& op) const { return kernels.Keep(stream, op); }
    absl::Status operator()(const RotationsOp& op) const { return kernels.Rotations(stream, op); }
    absl::Status operator()(const RotateOp& op) const { return kernels.RopeAndStore(stream, op); }
    absl::Status operator()(const AttendOp& op) const { return kernels.Attend(stream, op); }
    absl::Status operator()(const ChooseOp& op) const { return kernels.Choose(stream, op); }
  };
  return std::visit(To{kernels_, stream_}, call);
}

}  // namespace swiftcache::engine::backend::cuda
