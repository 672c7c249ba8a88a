// SPDX-License-Identifier: Apache-2.0
// Whatever a donor hears, in whatever order and however often: what it does for one lease keeps a grammar.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/lease/donor_harness.h"

namespace swiftcache::engine::lease {
namespace {

using ::testing::IsEmpty;

/// What the actions for one lease must be: a grammar that holds whatever comes in.
class Monitor {
 public:
  void See(const std::vector<std::string>& words) {
    for (const std::string& word : words) See(word);
  }
  std::string trace() const { return absl::StrJoin(seen_, ", "); }

 private:
  int64_t Count(absl::string_view verb) const {
    auto it = count_.find(std::string(verb));
    return it == count_.end() ? 0 : it->second;
  }
  void See(const std::string& word) {
    const std::string verb = word.substr(0, word.find(' '));
    seen_.push_back(word);
    if (verb == "grant") {
      EXPECT_EQ(Count("clear"), 1);
    }
    if (verb == "GRANTED") {
      EXPECT_EQ(Count("grant") - Count("fence"), 1);
    }
    if (verb == "revoke") {
      EXPECT_TRUE(Count("GRANTED") > 0 && Count("fence") == 0);
    }
    if (verb == "renewed") {
      EXPECT_EQ(Count("fence") + Count("revoke"), 0);
    }
    if (verb == "fence") {
      EXPECT_EQ(Count("grant"), 1);
    }
    if (verb == "take") {
      EXPECT_EQ(Count("clear"), 1);
    }
    if (verb == "take" && Count("GRANTED") > 0) {
      EXPECT_EQ(Count("fence"), 1);
    }
    if (verb == "RELEASED" || verb == "FENCED") {
      EXPECT_LE(Count("grant"), Count("take")) << "memory that was granted is taken back before its end is said";
    }
    ++count_[verb];
    if (verb != "renewed" && verb != "GRANTED") {
      EXPECT_LE(count_[verb], verb == "revoke" ? 2 : 1) << verb << " again";  // one as it is opened
    }
    EXPECT_LE(Count("RELEASED") + Count("FENCED"), 1);
  }
  std::map<std::string, int64_t> count_;
  std::vector<std::string> seen_;
};

struct Input {
  const char* name;
  std::function<void(Donor&, absl::Time)> apply;
};

const std::vector<Input>& Inputs() {
  static const auto& inputs = *new std::vector<Input>{
      {"Offered", [](Donor& d, absl::Time t) { d.Offered(MakeLease(1), t); }},
      {"Cleared", [](Donor& d, absl::Time t) { d.Cleared(kId, true, t); }},
      {"NotCleared", [](Donor& d, absl::Time t) { d.Cleared(kId, false, t); }},
      {"Granted", [](Donor& d, absl::Time t) { d.Granted(kId, kv::Epoch(7), t); }},
      {"GrantFailed", [](Donor& d, absl::Time t) { d.GrantFailed(kId, "no room", t); }},
      {"Opened", [](Donor& d, absl::Time t) { d.BorrowerOpened(kId, t); }},
      {"Renewal", [](Donor& d, absl::Time t) { d.Renewal(kId, 0, t); }},
      {"Released", [](Donor& d, absl::Time t) { d.BorrowerReleased(kId, t); }},
      {"Gone", [](Donor& d, absl::Time t) { d.BorrowerGone(kId, t); }},
      {"Revoke", [](Donor& d, absl::Time t) { d.Revoke(kId, "operator", t); }},
      {"NeedBack", [](Donor& d, absl::Time t) { d.NeedBack(1, t); }},
      {"Unknown", [](Donor& d, absl::Time t) { d.OnLeaseSnapshot({}, t); }},
      {"Refused", [](Donor& d, absl::Time t) { d.Refused(kId, "no such blocks", t); }},
      {"Tick", [](Donor& d, absl::Time t) { d.Tick(t); }},
      {"LateTick", [](Donor& d, absl::Time t) { d.Tick(t + kTtl); }},
      {"RevokeAll", [](Donor& d, absl::Time t) { d.RevokeAll("drain", t); }},
  };
  return inputs;
}

/// Tries every continuation of `length` inputs, each a copy of a message that may be new, repeated or long overdue.
void TryAll(const Donor& donor, const Monitor& monitor, const std::string& path, int length) {
  if (length == 0 || ::testing::Test::HasFailure()) return;
  for (const Input& input : Inputs()) {
    Donor next = donor;
    Monitor seen = monitor;
    input.apply(next, kStart + absl::Milliseconds(1));
    const bool held_before = !donor.Held().empty();
    const int64_t ignored = next.ignored() - donor.ignored();
    const auto words = Take(next);
    seen.See(words);
    if (ignored > 0) {
      EXPECT_THAT(words, IsEmpty());
    }
    if (held_before && next.Held().empty()) {
      EXPECT_FALSE(words.empty()) << "ended without a word";
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << path << " " << input.name << ": " << seen.trace();
    TryAll(next, seen, absl::StrCat(path, " ", input.name), length - 1);
  }
}

TEST(DonorTest, EveryOrderOfMessagesKeepsTheGrammar) { TryAll(NewDonor(), Monitor(), "", 5); }

TEST(DonorTest, EveryMessageTwiceInEveryStateKeepsTheGrammar) {
  const std::vector<const char*> life = {"Offered", "Cleared", "Granted", "Opened", "Renewal", "Revoke", "Released"};
  Donor donor = NewDonor();
  Monitor monitor;
  for (const char* step : life) {
    TryAll(donor, monitor, absl::StrCat("before ", step, ":"), 3);
    for (const Input& input : Inputs()) {
      if (std::string(input.name) == step) input.apply(donor, kStart);
    }
    monitor.See(Take(donor));
  }
  TryAll(donor, monitor, "after the end:", 3);
  EXPECT_THAT(donor.Held(), IsEmpty());
}

TEST(DonorTest, WhateverHappenedTheEndComesByItself) {
  // From every state that three inputs reach, kv, transport and time alone bring every lease to its end.
  std::function<void(const Donor&, int)> walk = [&](const Donor& donor, int length) {
    Donor end = donor;
    end.Cleared(kId, true, kStart + kTtl);
    end.Granted(kId, kv::Epoch(7), kStart + kTtl);
    if (end.NextDeadline() < absl::InfiniteFuture()) end.Tick(end.NextDeadline());
    ASSERT_THAT(end.Held(), IsEmpty());
    if (length == 0) return;
    for (const Input& input : Inputs()) {
      Donor next = donor;
      input.apply(next, kStart);
      walk(next, length - 1);
    }
  };
  walk(NewDonor(), 2);
  walk(ActiveDonor(), 3);
}

}  // namespace
}  // namespace swiftcache::engine::lease
