// SPDX-License-Identifier: Apache-2.0
// The half of the fake driver that works: streams, events, copies.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tests/fakes/fake_cuda_driver.h"

namespace swiftcache::engine::backend::cuda {

absl::StatusOr<Stream> FakeCudaDriver::CreateStream() {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("CreateStream"));
  auto stream = std::make_shared<StreamState>();
  stream->thread = std::thread([this, state = stream.get()] { Work(*state); });
  streams_[next_handle_] = std::move(stream);
  return Stream{next_handle_++};
}

void FakeCudaDriver::DestroyStream(Stream handle) {
  std::shared_ptr<StreamState> stream;
  {
    Lock lock(mutex_);
    const auto it = streams_.find(static_cast<uint64_t>(handle));
    if (it == streams_.end()) return Note("a stream is destroyed that is not there");
    stream = it->second;
    stream->stopping = true;
    changed_.notify_all();
  }
  stream->thread.join();
  Lock lock(mutex_);
  streams_.erase(static_cast<uint64_t>(handle));
}

void FakeCudaDriver::Finish(Stream handle) {
  Lock lock(mutex_);
  const auto it = streams_.find(static_cast<uint64_t>(handle));
  if (it == streams_.end()) return Note("a stream is waited for that is not there");
  if (it->second->captured) Note("a stream is waited for that is captured");
  changed_.wait(lock, [stream = it->second] { return stream->ops.empty(); });
}

absl::StatusOr<Event> FakeCudaDriver::CreateEvent() {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("CreateEvent"));
  events_[next_handle_] = std::make_shared<EventState>();
  return Event{next_handle_++};
}

void FakeCudaDriver::DestroyEvent(Event event) {
  Lock lock(mutex_);
  if (events_.erase(static_cast<uint64_t>(event)) == 0) Note("an event is destroyed that is not there");
}

std::shared_ptr<FakeCudaDriver::EventState> FakeCudaDriver::Find(Event event) const {
  const auto it = events_.find(static_cast<uint64_t>(event));
  if (it != events_.end()) return it->second;
  Note("an event is used that is not there");
  return nullptr;
}

absl::Status FakeCudaDriver::Give(const char* call, Stream handle, Op op) {
  RETURN_IF_ERROR(Count(call));
  const auto it = streams_.find(static_cast<uint64_t>(handle));
  if (it == streams_.end() || it->second->stopping) {
    Note(absl::StrCat(call, " to a stream that is not there"));
    return absl::InternalError("unknown stream");
  }
  if (it->second->captured) {
    if (!op.touches.empty() || op.ready || op.mark) Note(absl::StrCat(call, " to a stream that is captured"));
    it->second->captured->push_back(std::move(op));
    return absl::OkStatus();
  }
  for (const Touch& touch : op.touches) {
    const auto home = ReservationOf(touch.begin);
    if (!home) continue;
    if (touch.begin + touch.bytes > home->first + home->second) Note("a copy reaches beyond what was reserved at once");
    if (refused_.contains(home->first)) return absl::InternalError(absl::StrCat(call, ": what lies there is gone"));
  }
  it->second->ops.push_back(std::move(op));
  changed_.notify_all();
  return absl::OkStatus();
}

absl::Status FakeCudaDriver::BeginCapture(Stream handle) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("BeginCapture"));
  const auto it = streams_.find(static_cast<uint64_t>(handle));
  if (it == streams_.end() || it->second->captured) {
    Note("a stream is captured that is not there, or is captured already");
    return absl::InternalError("unknown stream");
  }
  it->second->captured.emplace();
  return absl::OkStatus();
}

absl::StatusOr<Graph> FakeCudaDriver::EndCapture(Stream handle) {
  Lock lock(mutex_);
  const auto it = streams_.find(static_cast<uint64_t>(handle));
  if (it == streams_.end() || !it->second->captured) {
    Note("a capture is ended that was not begun");
    return absl::InternalError("unknown stream");
  }
  std::vector<Op> captured = *std::exchange(it->second->captured, std::nullopt);
  RETURN_IF_ERROR(Count("EndCapture"));
  graphs_[next_handle_] = std::move(captured);
  return Graph{next_handle_++};
}

void FakeCudaDriver::DestroyGraph(Graph graph) {
  Lock lock(mutex_);
  if (graphs_.erase(static_cast<uint64_t>(graph)) == 0) Note("a graph is destroyed that is not there");
}

absl::Status FakeCudaDriver::LaunchGraph(Stream stream, Graph graph) {
  Lock lock(mutex_);
  const auto it = graphs_.find(static_cast<uint64_t>(graph));
  if (it == graphs_.end()) {
    Note("a graph is launched that is not there");
    return absl::InternalError("unknown graph");
  }
  Op whole = {.work = [kernels = it->second] {
    for (const Op& kernel : kernels) kernel.work();
  }};
  RETURN_IF_ERROR(Give("LaunchGraph", stream, std::move(whole)));
  ++graphs_launched_;
  return absl::OkStatus();
}

absl::Status FakeCudaDriver::Record(Event event, Stream stream) {
  Lock lock(mutex_);
  const auto state = Find(event);
  if (state == nullptr) return absl::InternalError("unknown event");
  const int64_t number = state->recorded + 1;
  RETURN_IF_ERROR(Give("Record", stream, {.mark = [state, number] { state->passed = number; }}));
  state->recorded = number;
  return absl::OkStatus();
}

absl::Status FakeCudaDriver::Wait(Stream stream, Event event) {
  Lock lock(mutex_);
  const auto state = Find(event);
  if (state == nullptr) return absl::InternalError("unknown event");
  return Give("Wait", stream, {.ready = [state, number = state->recorded] { return state->passed >= number; }});
}

absl::StatusOr<bool> FakeCudaDriver::Passed(Event event) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("Passed"));
  const auto state = Find(event);
  return state != nullptr && state->passed >= state->recorded;
}

absl::Status FakeCudaDriver::Synchronize(Event event) {
  Lock lock(mutex_);
  RETURN_IF_ERROR(Count("Synchronize"));
  const auto state = Find(event);
  if (state == nullptr) return absl::InternalError("unknown event");
  changed_.wait(lock, [&] { return lost_ || state->passed >= state->recorded; });
  return lost_ ? absl::DataLossError("Synchronize: the device is lost") : absl::OkStatus();
}

absl::Status FakeCudaDriver::Copy(Stream stream, std::span<const DeviceCopy> copies) {
  Op op = {.runs = static_cast<int64_t>(copies.size())};
  for (const DeviceCopy& copy : copies) {
    op.touches.push_back({.begin = copy.from, .bytes = copy.bytes});
    op.touches.push_back({.begin = copy.to, .bytes = copy.bytes, .writes = true});
  }
  op.work = [this, copies = std::vector<DeviceCopy>(copies.begin(), copies.end())] {
    for (const DeviceCopy& copy : copies) {
      if (options_.on_copy) options_.on_copy(copy);
      std::memcpy(Host(copy.to), Host(copy.from), copy.bytes);
    }
  };
  Lock lock(mutex_);
  if (copies.empty()) Note("a copy of nothing");
  return Give("Copy", stream, std::move(op));
}

absl::Status FakeCudaDriver::Copy2D(Stream stream, const DeviceCopy2D& copy) {
  Op op = {.grids = 1};
  for (int64_t row = 0; row < copy.rows; ++row) {
    op.touches.push_back({.begin = copy.from + row * copy.from_stride, .bytes = copy.bytes});
    op.touches.push_back({.begin = copy.to + row * copy.to_stride, .bytes = copy.bytes, .writes = true});
  }
  op.work = [copy] {
    for (int64_t row = 0; row < copy.rows; ++row) {
      std::memcpy(Host(copy.to + row * copy.to_stride), Host(copy.from + row * copy.from_stride), copy.bytes);
    }
  };
  Lock lock(mutex_);
  if (copy.rows <= 0 || copy.from_stride < copy.bytes || copy.to_stride < copy.bytes) {
    Note("a grid of no rows, or with strides less than a row");
  }
  return Give("Copy2D", stream, std::move(op));
}

absl::Status FakeCudaDriver::Zero(Stream stream, uint64_t address, int64_t bytes) {
  Op op = {.touches = {{.begin = address, .bytes = bytes, .writes = true}},
           .work = [address, bytes] { std::memset(Host(address), 0, bytes); }};
  Lock lock(mutex_);
  return Give("Zero", stream, std::move(op));
}

absl::Status FakeCudaDriver::Launch(Stream stream, std::function<void()> kernel) {
  Lock lock(mutex_);
  ++kernels_given_;
  return Give("Launch", stream, {.work = std::move(kernel)});
}

std::optional<std::pair<uint64_t, int64_t>> FakeCudaDriver::ReservationOf(uint64_t address) const {
  const auto next = reserved_.upper_bound(address);
  if (next == reserved_.begin()) return std::nullopt;
  const auto& [begin, bytes] = *std::prev(next);
  if (address >= begin + bytes) return std::nullopt;
  return std::pair(begin, bytes);
}

// Memory of the host, which has other addresses, is reached as it is.
bool FakeCudaDriver::IsMapped(const Touch& touch) const {
  if (ToHostNumber(touch.begin) == touch.begin) return true;
  uint64_t at = touch.begin;
  const uint64_t end = touch.begin + touch.bytes;
  while (at < end) {
    auto it = mapped_.upper_bound(at);
    if (it == mapped_.begin()) return false;
    const auto& [begin, range] = *--it;
    if (at >= begin + range.bytes || (touch.writes && range.access == Access::kRead)) return false;
    at = begin + range.bytes;
  }
  return true;
}

// One operation after the other. A lost device forgets what it was given: its events never pass.
void FakeCudaDriver::Work(StreamState& stream) {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stream.stopping || !stream.ops.empty(); });
    if (stream.ops.empty()) return;
    const Op& op = stream.ops.front();
    if (op.ready) changed_.wait(lock, [&] { return lost_ || op.ready(); });
    if (op.work) changed_.wait(lock, [&] { return lost_ || !paused_; });
    if (op.mark && !lost_) op.mark();
    if (op.work && !lost_) {
      if (std::all_of(op.touches.begin(), op.touches.end(), [&](const Touch& touch) { return IsMapped(touch); })) {
        const int64_t late_us = static_cast<int64_t>(random_() % (options_.most_late_us + 1));
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(late_us));
        op.work();
        lock.lock();
        runs_copied_ += op.runs;
        grids_copied_ += op.grids;
      } else {
        Note("a copy reads or writes where nothing is mapped so");
      }
    }
    stream.ops.pop_front();
    changed_.notify_all();
  }
}

}  // namespace swiftcache::engine::backend::cuda
