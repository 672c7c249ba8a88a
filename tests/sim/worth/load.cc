// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/worth/load.h"

#include <algorithm>
#include <cmath>

#include "tests/sim/simulator.h"

namespace swiftcache::sim::worth {
namespace {

class Maker {
 public:
  Maker(const LoadSpec& spec, uint64_t seed, double seconds) : spec_(spec), random_(seed), seconds_(seconds) {}

  Load Make() {
    load_.system_tokens = spec_.system_tokens;
    for (int64_t i = 0; i < spec_.conversations && spec_.kind == LoadKind::kChat; ++i) Talk(i);
    for (double at = After(spec_.per_second > 0 ? 1 / spec_.per_second : seconds_); at < seconds_;
         at += After(1 / spec_.per_second)) {
      if (IsOn(at)) AddSummary(at);
    }
    for (double at = spec_.burst_every; spec_.burst_every > 0 && at < seconds_; at += spec_.burst_every) {
      for (int64_t i = 0; i < spec_.burst; ++i) AddSummary(at + 0.01 * static_cast<double>(i));
    }
    std::stable_sort(load_.requests.begin(), load_.requests.end(),
                     [](const Request& a, const Request& b) { return a.at < b.at; });
    return std::move(load_);
  }

 private:
  double Uniform() { return static_cast<double>(random_.Next() >> 11) * 0x1p-53; }
  double After(double mean) { return -std::log(1 - Uniform()) * mean; }
  int64_t About(int64_t mean) { return std::max<int64_t>(1, static_cast<int64_t>((0.5 + Uniform()) * mean)); }

  bool IsOn(double at) const { return NextOn(at) == at; }
  double NextOn(double at) const {
    if (spec_.off_seconds <= 0) return at;
    const double period = spec_.on_seconds + spec_.off_seconds;
    const double in_period = std::fmod(at + spec_.shift, period);
    return in_period < spec_.on_seconds ? at : at + period - in_period;
  }

  // One place of the many: a conversation after the other.
  void Talk(int64_t place) {
    const double think = spec_.think_seconds * std::pow(static_cast<double>(place + 1), spec_.zipf);
    double at = After(think);
    while (at < seconds_) {
      Request turn{.conversation = ++conversations_,
                   .prompt_tokens = spec_.system_tokens + About(spec_.first_tokens),
                   .answer_tokens = About(spec_.answer_tokens)};
      do {
        turn.at = at = NextOn(at);
        if (at >= seconds_) return;
        load_.requests.push_back(turn);
        turn.prompt_tokens += turn.answer_tokens + About(spec_.turn_tokens);
        turn.answer_tokens = About(spec_.answer_tokens);
        at += 2 + After(think);
      } while (turn.prompt_tokens < spec_.most_tokens && Uniform() > 1 / spec_.turns);
    }
  }

  void AddSummary(double at) {
    load_.requests.push_back({.at = at,
                              .conversation = ++conversations_,
                              .prompt_tokens = spec_.system_tokens + About(spec_.prompt_tokens),
                              .answer_tokens = spec_.summary_tokens});
  }

  const LoadSpec spec_;
  Random random_;
  const double seconds_;
  int64_t conversations_ = 0;
  Load load_;
};

}  // namespace

Load MakeLoad(const LoadSpec& spec, uint64_t seed, double seconds) { return Maker(spec, seed, seconds).Make(); }

std::vector<int32_t> TokensOf(const Load& load, int64_t conversation, int64_t count) {
  std::vector<int32_t> tokens;
  Random system(1), said(conversation + 1000);
  for (int64_t i = 0; i < count; ++i) {
    Random& of = i < load.system_tokens ? system : said;
    tokens.push_back(static_cast<int32_t>(of.Next() >> 34));
  }
  return tokens;
}

}  // namespace swiftcache::sim::worth
