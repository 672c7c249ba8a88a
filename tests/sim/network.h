// SPDX-License-Identifier: Apache-2.0
// A network that delays, loses, repeats and is cut between any two.
//
//   network.Cut(0, 2, until);
//   network.Send(0, 2, engine, [] { ... });         // a datagram: may be lost, repeated, overtaken
//   network.SendInOrder(pipe, 0, 2, engine, ...);   // a byte stream: waits out a cut; a late copy may follow
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "tests/sim/simulator.h"

namespace swiftcache::sim {

/// One direction of a connection: what is sent later arrives later.
struct Pipe {
  Micros last_arrival = 0;
};

/// Thread-safety: none. Ownership: borrows the simulator.
class Network {
 public:
  explicit Network(Simulator& sim) : sim_(sim) {}

  double copies = 0.02;  // probability that a message arrives once more, later
  double slow = 0.03;    // probability that it takes tens of milliseconds
  Micros latest_copy = 1'500'000;

  void Cut(int a, int b, Micros until) { cuts_[Link(a, b)] = until; }
  void HealAll() { cuts_.clear(); }
  bool IsCut(int a, int b) const { return CutUntil(a, b) > sim_.now(); }

  /// To whatever life the process `to` has when it arrives.
  void Send(int a, int b, Process& to, std::function<void()> deliver) {
    if (IsCut(a, b)) return;
    if (sim_.random.Chance(copies)) {
      sim_.At(sim_.now() + Delay() + sim_.random.Below(latest_copy), [&to, deliver] { to.Run(deliver); });
    }
    sim_.At(sim_.now() + Delay(), [&to, deliver = std::move(deliver)] { to.Run(deliver); });
  }

  /// To this life of `to`.
  void SendInOrder(Pipe& pipe, int a, int b, Process& to, std::function<void()> deliver, bool may_repeat) {
    pipe.last_arrival = std::max(pipe.last_arrival + 1, std::max(sim_.now(), CutUntil(a, b)) + Delay());
    if (may_repeat && sim_.random.Chance(copies)) {
      to.At(pipe.last_arrival + sim_.random.Below(latest_copy), deliver);
    }
    to.At(pipe.last_arrival, std::move(deliver));
  }

  Micros Delay() {
    return sim_.random.Chance(slow) ? sim_.random.Between(1'000, 60'000) : sim_.random.Between(20, 400);
  }

 private:
  static std::pair<int, int> Link(int a, int b) { return {std::min(a, b), std::max(a, b)}; }
  Micros CutUntil(int a, int b) const {
    const auto it = cuts_.find(Link(a, b));
    return it == cuts_.end() ? 0 : it->second;
  }

  Simulator& sim_;
  std::map<std::pair<int, int>, Micros> cuts_;
};

}  // namespace swiftcache::sim
