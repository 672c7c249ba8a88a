// SPDX-License-Identifier: Apache-2.0
// Whatever a borrower hears, in whatever order and however often: what it does for one lease keeps a grammar.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/lease/borrower_harness.h"

namespace swiftcache::engine::lease::of_borrower {
namespace {

using ::testing::IsEmpty;

/// What the actions for one lease must be: a grammar that holds whatever comes in.
class Monitor {
 public:
  /// `freed`: kv has said that it uses the region no more.
  void See(const std::vector<std::string>& words, bool freed) {
    for (const std::string& word : words) See(word, freed);
  }
  std::string trace() const { return absl::StrJoin(seen_, ", "); }

 private:
  int64_t Count(absl::string_view verb) const {
    auto it = count_.find(std::string(verb));
    return it == count_.end() ? 0 : it->second;
  }
  void See(const std::string& word, bool freed) {
    const std::string verb = word.substr(0, word.find(' '));
    seen_.push_back(word);
    EXPECT_EQ(Count("close"), 0) << "closed before " << verb;
    if (verb != "open") {
      EXPECT_EQ(Count("open"), 1);
    }
    if (verb == "renew") {
      EXPECT_EQ(Count("use") - Count("drain") - Count("lose"), 1);
    }
    if (verb == "drain" || verb == "lose") {
      EXPECT_EQ(Count("use") - Count("lose"), 1);
    }
    if (verb == "release") {
      EXPECT_TRUE(Count("use") == 0 || (freed && Count("drain") > 0 && Count("lose") == 0));
    }
    if (verb == "close" && Count("use") == 1) {
      EXPECT_TRUE(freed && Count("drain") + Count("lose") > 0);
    }
    ++count_[verb];
    if (verb != "renew" && verb != "drain") {
      EXPECT_EQ(Count(verb), 1) << verb << " twice";
    }
  }
  std::map<std::string, int64_t> count_;
  std::vector<std::string> seen_;
};

struct Input {
  std::string name;
  std::function<void(Borrower&, absl::Time)> apply;
};

const std::vector<Input>& Inputs() {
  static const auto& inputs = *new std::vector<Input>{
      {"Granted", [](Borrower& b, absl::Time t) { b.Granted(MakeLease(1), t); }},
      {"Opened", [](Borrower& b, absl::Time t) { b.Opened(kId, true, t); }},
      {"NotOpened", [](Borrower& b, absl::Time t) { b.Opened(kId, false, t); }},
      {"Renewed", [](Borrower& b, absl::Time t) { b.Renewed(kId, t); }},
      {"Revoked", [](Borrower& b, absl::Time t) { b.Revoked(kId, kLeft, t); }},
      {"Drained", [](Borrower& b, absl::Time t) { b.Drained(kId, t); }},
      {"Dropped", [](Borrower& b, absl::Time t) { b.Dropped(kId, t); }},
      {"DonorGone", [](Borrower& b, absl::Time t) { b.DonorGone(kId, t); }},
      {"GenerationChanged", [](Borrower& b, absl::Time t) { b.GenerationChanged(kId, t); }},
      {"DonorSilent", [](Borrower& b, absl::Time t) { b.DonorSilent(kId, t); }},
      {"GiveBack", [](Borrower& b, absl::Time t) { b.GiveBack(kId, kLeft, t); }},
      {"GiveBackAll", [](Borrower& b, absl::Time t) { b.GiveBackAll(kLeft, t); }},
      {"Tick", [](Borrower& b, absl::Time t) { b.Tick(t); }},
      {"LaterTick", [](Borrower& b, absl::Time t) { b.Tick(t + kTtl / 3); }},
      {"LateTick", [](Borrower& b, absl::Time t) { b.Tick(t + kTtl); }},
  };
  return inputs;
}

/// Tries every continuation of `length` inputs, each a copy of a message that may be new, repeated or long overdue.
void TryAll(const Borrower& borrower, const Monitor& monitor, const std::string& path, int length) {
  if (length == 0 || ::testing::Test::HasFailure()) return;
  for (const Input& input : Inputs()) {
    Borrower next = borrower;
    Monitor seen = monitor;
    input.apply(next, kStart + absl::Milliseconds(1));
    const int64_t ignored = next.ignored() - borrower.ignored();
    const auto words = Take(next);
    seen.See(words, input.name == "Drained" || input.name == "Dropped");
    if (ignored > 0) {
      EXPECT_THAT(words, IsEmpty());
    }
    if (next.num_leases() < borrower.num_leases()) {
      EXPECT_EQ(words.back(), "close 1");
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << path << " " << input.name << ": " << seen.trace();
    TryAll(next, seen, absl::StrCat(path, " ", input.name), length - 1);
  }
}

TEST(BorrowerTest, EveryOrderOfMessagesKeepsTheGrammar) { TryAll(NewBorrower(), Monitor(), "", 5); }

TEST(BorrowerTest, EveryMessageTwiceInEveryStateKeepsTheGrammar) {
  for (const std::vector<std::string>& life :
       {std::vector<std::string>{"Granted", "Opened", "Renewed", "Revoked", "Drained"},
        std::vector<std::string>{"Granted", "Opened", "DonorGone", "Dropped"}}) {
    Borrower borrower = NewBorrower();
    Monitor monitor;
    for (const std::string& step : life) {
      TryAll(borrower, monitor, absl::StrCat("before ", step, ":"), 3);
      for (const Input& input : Inputs()) {
        if (input.name == step) input.apply(borrower, kStart);
      }
      monitor.See(Take(borrower), step == "Drained" || step == "Dropped");
    }
    TryAll(borrower, monitor, "after the end:", 3);
    EXPECT_EQ(borrower.num_leases(), 0);
  }
}

TEST(BorrowerTest, WhateverHappenedTheEndComesByItself) {
  // From every state that four inputs reach, time and kv alone bring every lease to its end.
  std::function<void(const Borrower&, int)> walk = [&](const Borrower& borrower, int length) {
    Borrower end = borrower;
    for (int i = 0; i < 10 && end.NextDeadline() < absl::InfiniteFuture(); ++i) end.Tick(end.NextDeadline());
    end.Dropped(kId, kStart + kTtl);
    ASSERT_EQ(end.num_leases(), 0);
    if (length == 0) return;
    for (const Input& input : Inputs()) {
      Borrower next = borrower;
      input.apply(next, kStart);
      walk(next, length - 1);
    }
  };
  walk(NewBorrower(), 4);
}

}  // namespace
}  // namespace swiftcache::engine::lease::of_borrower
