// SPDX-License-Identifier: Apache-2.0
// swiftcachectl bench: conversations of several turns at a time; prints percentiles.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "services/ctl/client.h"
#include "services/ctl/commands.h"
#include "services/ctl/complaint.h"
#include "services/ctl/percentiles.h"
#include "services/ctl/sampling_flags.h"
#include "services/ctl/table.h"

namespace swiftcache::services::ctl {
namespace {

struct BenchFlags {
  ModelFlags model;
  int64_t conversations = 16, rounds = 3, concurrency = 8, words = 32;
  int32_t max_tokens = 64;
  uint64_t seed = 1;
};

// What all turns together gave.
class Results {
 public:
  void Add(const absl::StatusOr<Turn>& turn) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!turn.ok()) {
      if (errors_++ == 0) first_error_ = turn.status();
      return;
    }
    ttft_.Add(turn->time_to_first_token);
    gaps_.Add(turn->gaps);
    total_.Add(turn->total);
    tokens_ += turn->tokens;
    prompt_tokens_ += turn->prompt_tokens;
    cached_tokens_ += turn->cached_tokens;
  }

  /// Prints; the first error, if any.
  absl::Status Print(absl::Duration wall) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const double seconds = absl::ToDoubleSeconds(wall);
    const double share = prompt_tokens_ > 0 ? 100.0 * cached_tokens_ / prompt_tokens_ : 0;
    std::cout << absl::StrFormat("%d turns ok, %d errors in %.2f s: %.1f tokens/s, %.2f turns/s\n", total_.count(),
                                 errors_, seconds, tokens_ / seconds, total_.count() / seconds)
              << absl::StrFormat("prompt tokens %d, from the cache %d (%.1f %%); new tokens %d\n", prompt_tokens_,
                                 cached_tokens_, share, tokens_);
    Table table({{"ms"},
                 {"mean", Table::kRight},
                 {"p50", Table::kRight},
                 {"p90", Table::kRight},
                 {"p95", Table::kRight},
                 {"p99", Table::kRight},
                 {"max", Table::kRight}});
    AddRow("ttft", ttft_, table);
    AddRow("gap between tokens", gaps_, table);
    AddRow("whole turn", total_, table);
    std::cout << table.ToString() << std::flush;
    if (errors_ == 0) return absl::OkStatus();
    return absl::Status(first_error_.code(),
                        absl::StrCat(errors_, " turns failed, the first: ", first_error_.message()));
  }

 private:
  static void AddRow(const std::string& name, const Percentiles& values, Table& table) {
    const auto show = [](absl::Duration value) { return absl::StrFormat("%.2f", absl::ToDoubleMilliseconds(value)); };
    table.Add({name, show(values.Mean()), show(values.At(0.5)), show(values.At(0.9)), show(values.At(0.95)),
               show(values.At(0.99)), show(values.At(1))});
  }

  mutable absl::Mutex mutex_;
  Percentiles ttft_ ABSL_GUARDED_BY(mutex_), gaps_ ABSL_GUARDED_BY(mutex_), total_ ABSL_GUARDED_BY(mutex_);
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0, prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t cached_tokens_ ABSL_GUARDED_BY(mutex_) = 0, errors_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

std::string RandomWords(int64_t count, std::mt19937_64& random) {
  static constexpr const char* kWords[] = {"river",  "stone",  "paper",  "light",  "garden", "window",
                                           "letter", "engine", "cloud",  "silver", "market", "bridge",
                                           "forest", "music",  "winter", "table"};
  std::string text;
  for (int64_t i = 0; i < count; ++i) absl::StrAppend(&text, i > 0 ? " " : "", kWords[random() % std::size(kWords)]);
  return text;
}

// One conversation; a failed turn ends it.
void Converse(Client& client, const BenchFlags& flags, const std::string& model, int64_t number, Results& results) {
  std::mt19937_64 random(flags.seed * 1'000'003 + number);
  v1::GenerateRequest request;
  request.set_model(model);
  request.set_conversation_id(absl::StrCat("bench-", flags.seed, "-", number));
  request.mutable_sampling()->set_max_tokens(flags.max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_ignore_eos(true);
  for (int64_t round = 0; round < flags.rounds; ++round) {
    v1::ChatMessage& question = *request.mutable_chat()->add_messages();
    question.set_role("user");
    question.set_content(RandomWords(flags.words, random));
    const absl::StatusOr<Turn> turn = client.Generate(request, [](const v1::GenerateResponse&) {});
    results.Add(turn);
    if (!turn.ok()) return;
    v1::ChatMessage& answer = *request.mutable_chat()->add_messages();
    answer.set_role("assistant");
    answer.set_content(turn->text);
  }
}

absl::Status RunBench(const Addresses& addresses, const BenchFlags& flags) {
  Client client(addresses.gateway);
  ASSIGN_OR_RETURN(const std::string model, client.ResolveModel(flags.model.model, flags.model.wait()));
  const int64_t at_a_time = std::min(flags.concurrency, flags.conversations);
  std::cout << model << ": " << flags.conversations << " conversations of " << flags.rounds << " turns, " << at_a_time
            << " at a time, " << flags.words << " words in, " << flags.max_tokens << " tokens out" << std::endl;
  const RealClock clock;
  const absl::Time start = clock.Now();
  Results results;
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < at_a_time; ++i) {
    threads.emplace_back([&] {
      for (int64_t number = next++; number < flags.conversations; number = next++) {
        Converse(client, flags, model, number, results);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results.Print(clock.Now() - start);
}

}  // namespace

void AddBench(CLI::App& app, const Addresses& addresses, Command& chosen) {
  auto flags = std::make_shared<BenchFlags>();  // shared by the parser and the command
  CLI::App* command = app.add_subcommand("bench", "Measures conversations of several turns")->fallthrough();
  flags->model.AddTo(*command);
  const auto add = [&](const char* name, auto& value, double max, const char* help) {
    command->add_option(name, value, help)->check(NumberIn(1, max))->capture_default_str();
  };
  add("--conversations", flags->conversations, 1'000'000, "conversations");
  add("--rounds", flags->rounds, 10'000, "turns of each");
  add("--concurrency", flags->concurrency, 4096, "conversations at a time");
  add("--words", flags->words, 1'000'000, "words of each question");
  add("--max_tokens", flags->max_tokens, 1'000'000, "tokens of each answer; end-of-sequence is ignored");
  command->add_option("--seed", flags->seed, "the same seed asks the same questions")->capture_default_str();
  command->callback([&, flags] { chosen = [&, flags] { return RunBench(addresses, *flags); }; });
}

}  // namespace swiftcache::services::ctl
