// SPDX-License-Identifier: Apache-2.0
// An engine that shares its memory, under all that its peers may do, thousands of times: each run of its own seed.
//
//   SOAK_SEEDS=100000 engine_exec_sharing_soak_test     more runs than usual; SOAK_FIRST_SEED says where they begin
#include "tests/engine/exec/sharing_soak.h"

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "tests/fakes/environment.h"

namespace swiftcache::engine::exec {
namespace {

struct Setting {
  const char* name;
  StreamMode stream;
  bool late;
  bool mapped = true;
  bool measures_links = false;
};

class SharingSoakTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override { FLAGS_minloglevel = google::GLOG_FATAL; }  // losing leases is the daily work here
  void TearDown() override { FLAGS_minloglevel = google::GLOG_INFO; }

  std::string RunOne(uint64_t seed, ReaderBug bug, SoakTally& tally) const {
    return SharingSoak({.seed = seed,
                        .bug = bug,
                        .stream = GetParam().stream,
                        .mapped = GetParam().mapped,
                        .measures_links = GetParam().measures_links,
                        .late = GetParam().late},
                       tally)
        .Run();
  }
  void ExpectNoticed(ReaderBug bug, uint64_t num_seeds = 1000) const {
    SoakTally tally;
    for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
      const std::string wrong = RunOne(seed, bug, tally);
      if (wrong.empty()) continue;
      std::cout << "noticed by seed " << seed << ": " << wrong << "\n";
      EXPECT_TRUE(absl::StrContains(wrong, "wrong token") || absl::StrContains(wrong, "had lent") ||
                  absl::StrContains(wrong, "was lent"))
          << wrong;
      return;
    }
    FAIL() << "not noticed";
  }
};

INSTANTIATE_TEST_SUITE_P(AllWays, SharingSoakTest,
                         testing::Values(Setting{"InPlace", StreamMode::kInPlace, false},
                                         Setting{"Streamed", StreamMode::kLsc, false},
                                         Setting{"LateInPlace", StreamMode::kInPlace, true},
                                         Setting{"LateStreamed", StreamMode::kLsc, true},
                                         Setting{"Unmapped", StreamMode::kAuto, false, false},
                                         Setting{"LateUnmapped", StreamMode::kAuto, true, false},
                                         Setting{"Measured", StreamMode::kAuto, false, true, true},
                                         Setting{"LateMeasured", StreamMode::kAuto, true, true, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(SharingSoakTest, NoSeedHasAWrongTokenOrLeavesAnythingBehind) {
  const uint64_t num_seeds = FromEnvironment("SOAK_SEEDS").value_or(GetParam().late ? 1000 : 300);
  const uint64_t first = FromEnvironment("SOAK_FIRST_SEED").value_or(1);
  SoakTally tally;
  for (uint64_t seed = first; seed < first + num_seeds; ++seed) {
    const std::string wrong = RunOne(seed, ReaderBug::kNone, tally);
    ASSERT_EQ(wrong, "") << "seed " << seed << "; again: SOAK_SEEDS=1 SOAK_FIRST_SEED=" << seed;
  }
  std::cout << num_seeds << " runs; as a borrower: " << tally.granted << " leases, " << tally.fenced << " fenced ("
            << tally.fenced_in_steps << " in the midst of a step), " << tally.revoked << " revoked, "
            << tally.donors_gone << " donors gone, " << tally.released << " given back (" << tally.unread
            << " that no step read), " << tally.lost << " lost, " << tally.stored << " stores, " << tally.refused_stores
            << " refused, " << tally.fetches << " loads of blocks; as a donor: " << tally.lent << " lent, "
            << tally.declined << " declined, " << tally.asked_back << " asked back, " << tally.taken_back
            << " taken back, " << tally.lent_byte_seconds << " byte seconds (ended " << tally.ended_for_need
            << " for need, " << tally.given_back << " given back, " << tally.borrowers_gone
            << " borrowers gone); worth " << tally.sharing.saved_tokens << " tokens saved, "
            << tally.sharing.again_for_loans_tokens << " again for loans, " << tally.sharing.again_for_losses_tokens
            << " for losses; " << tally.requests << " requests, " << tally.cancelled << " cancelled, " << tally.starved
            << " starved, " << tally.tokens << " tokens, " << tally.again << " computed again (at most "
            << tally.most_losses << " losses of one), " << tally.donor_tokens << " prompt tokens from leases, "
            << tally.first_layers_found << " first layers found, " << tally.steps << " steps, " << tally.went_on
            << " that went on, " << tally.preemptions << " preemptions\n";
  if (num_seeds < 100) return;
  if (GetParam().late) {  // else no fence was handed on that anybody had to wait for (loads: it never comes to that)
    EXPECT_GT(tally.stores_behind, 0);
    if (GetParam().stream == StreamMode::kInPlace) {
      EXPECT_EQ(tally.streams_behind, 0);
    } else if (num_seeds >= 1000) {  // it happens in one run of a hundred
      EXPECT_GT(tally.streams_behind, 0);
    }
    EXPECT_EQ(tally.went_on, 0);
  } else {
    EXPECT_GT(tally.went_on, static_cast<int64_t>(num_seeds) / 20);
  }
  if (GetParam().stream == StreamMode::kLsc || !GetParam().mapped) {
    EXPECT_GT(tally.first_layers_found, static_cast<int64_t>(num_seeds));
  }
  for (int64_t happened : {tally.granted,
                           tally.fenced,
                           tally.fenced_in_steps,
                           tally.revoked,
                           tally.donors_gone,
                           tally.released,
                           tally.unread,
                           tally.lost,
                           tally.stored,
                           tally.refused_stores,
                           tally.fetches,
                           tally.lent,
                           tally.declined,
                           tally.asked_back,
                           tally.taken_back,
                           tally.cancelled,
                           tally.starved,
                           tally.again,
                           tally.donor_tokens,
                           tally.preemptions,
                           tally.lent_byte_seconds,
                           tally.ended_for_need,
                           tally.given_back,
                           tally.borrowers_gone,
                           tally.sharing.saved_tokens,
                           tally.sharing.again_for_loans_tokens,
                           tally.sharing.again_for_losses_tokens}) {
    EXPECT_GT(happened, static_cast<int64_t>(num_seeds) / 200) << "something hardly ever happened";
  }
}

TEST_P(SharingSoakTest, ARunIsTheSameAgain) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SoakTally first, second;
    EXPECT_EQ(RunOne(seed, ReaderBug::kNone, first), RunOne(seed, ReaderBug::kNone, second));
    EXPECT_EQ(first, second) << "seed " << seed;
  }
}

TEST_P(SharingSoakTest, AReaderThatIgnoresTheGenerationIsNoticed) { ExpectNoticed(ReaderBug::kNoGenerationCheck); }
TEST_P(SharingSoakTest, AReaderWhoseFirstCheckIsItsLastIsNoticed) { ExpectNoticed(ReaderBug::kOnlyFirstCheck); }
TEST_P(SharingSoakTest, AMoverThatIgnoresTheGenerationIsNoticed) { ExpectNoticed(ReaderBug::kMovesUnchecked); }

class LateSoakTest : public SharingSoakTest {};
INSTANTIATE_TEST_SUITE_P(InPlace, LateSoakTest, testing::Values(Setting{"InPlace", StreamMode::kInPlace, true}),
                         [](const auto& info) { return info.param.name; });
class LateStreamSoakTest : public SharingSoakTest {};
INSTANTIATE_TEST_SUITE_P(Streamed, LateStreamSoakTest, testing::Values(Setting{"Streamed", StreamMode::kLsc, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(LateSoakTest, WordsThatAreComparedBeforeTheLastReadAreNoticed) {
  ExpectNoticed(ReaderBug::kWordsComparedEarly, 300);
}
TEST_P(LateSoakTest, AStoreThatBeginsBeforeItsLayerWasWrittenIsNoticed) { ExpectNoticed(ReaderBug::kStoredEarly, 300); }
TEST_P(LateStreamSoakTest, ASlotThatIsUsedAgainBeforeItsReaderIsDoneIsNoticed) {
  ExpectNoticed(ReaderBug::kSlotsReusedEarly, 300);
}
TEST_P(LateStreamSoakTest, AFirstLayerThatIsTakenForThatOfAnotherBlockIsNoticed) {
  ExpectNoticed(ReaderBug::kSlotsKeepAnyFirst, 300);
}
TEST_P(LateSoakTest, ATokenThatIsReadBeforeItWasComputedIsNoticed) { ExpectNoticed(ReaderBug::kTokensReadEarly, 300); }
TEST_P(LateSoakTest, ABlockThatIsZeroedAfterItsNewOwnerWroteIsNoticed) { ExpectNoticed(ReaderBug::kZeroedLate, 300); }

}  // namespace
}  // namespace swiftcache::engine::exec
