// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulator.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace swiftcache::sim {

uint64_t Random::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void Simulator::At(Micros when, std::function<void()> event) {
  events_.push({.when = std::max(when, now_), .order = ++num_events_, .run = std::move(event)});
}

bool Simulator::RunNext(Micros until) {
  if (failed()) return false;
  if (events_.empty() || events_.top().when > until) {
    now_ = until;
    return false;
  }
  now_ = events_.top().when;
  const std::function<void()> run = std::move(const_cast<Event&>(events_.top()).run);  // its order does not change
  events_.pop();
  run();
  return true;
}

void Simulator::Fail(const std::string& what) {
  if (failed()) return;
  failure_ = what;
  Trace([&] { return "FAILED: " + what; });
}

void Simulator::Trace(const std::function<std::string()>& line) const {
  if (traced) std::fprintf(stderr, "%10.3f ms  %s\n", static_cast<double>(now_) / 1000, line().c_str());
}

Process::Process(Simulator& sim)
    : sim_(sim),
      offset_nanos_(sim.random.Between(0, int64_t{1} << 50)),
      rate_ppm_(sim.random.Between(-20'000, 20'000)) {}

void Process::Start() {
  ++life_;
  alive_ = true;
  stopped_ = false;
  waiting_.clear();
}

void Process::Kill() {
  alive_ = stopped_ = false;
  waiting_.clear();
}

void Process::Stop() { stopped_ = alive_; }

void Process::Continue() {
  stopped_ = false;
  for (std::function<void()>& event : std::exchange(waiting_, {})) Run(std::move(event));
}

void Process::Run(std::function<void()> event) {
  if (!alive_ || sim_.failed()) return;
  if (stopped_) {
    waiting_.push_back(std::move(event));
    return;
  }
  const int64_t life = life_;
  event();
  if (life == life_ && alive_) after_each();
}

void Process::At(Micros when, std::function<void()> event) {
  sim_.At(when, [this, life = life_, event = std::move(event)]() mutable {
    if (life == life_) Run(std::move(event));
  });
}

absl::Time Process::LocalNow() const {
  const int64_t nanos = sim_.now() * 1000 + sim_.now() * rate_ppm_ / 1000 + offset_nanos_;
  return absl::UnixEpoch() + absl::Nanoseconds(nanos);
}

Micros Process::WhenLocal(absl::Time local) const {
  const absl::Duration left = local - LocalNow();
  if (left <= absl::ZeroDuration()) return sim_.now();
  const double micros = absl::ToDoubleMicroseconds(left) / (1 + static_cast<double>(rate_ppm_) * 1e-6);
  return sim_.now() + static_cast<Micros>(micros) + 2;
}

}  // namespace swiftcache::sim
