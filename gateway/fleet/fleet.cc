// SPDX-License-Identifier: Apache-2.0
#include "gateway/fleet/fleet.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "common/log/log.h"

namespace swiftcache::gateway::fleet {

namespace {

void MarkStalledLost(const std::shared_ptr<EngineLink>& link) {
  if (link != nullptr) link->MarkLost(absl::UnavailableError("it stands still: its work makes no progress"));
}

CardStore::Options WithOutcome(CardStore::Options options, std::function<void()> on_outcome) {
  options.on_outcome = std::move(on_outcome);
  return options;
}

}  // namespace

const char* Name(EngineState state) {
  switch (state) {
    case EngineState::kUnspecified:
      return "UNSPECIFIED";
    case EngineState::kStarting:
      return "STARTING";
    case EngineState::kReady:
      return "READY";
    case EngineState::kDraining:
      return "DRAINING";
    case EngineState::kStalled:
      return "STALLED";
  }
  return "UNSPECIFIED";
}

int64_t ModelView::max_model_len_tokens() const {
  int64_t longest = 0;
  for (const EngineView& engine : engines) longest = std::max(longest, engine.max_model_len_tokens);
  return longest;
}

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(const Options& options, ClientFactory make_client,
                                                     const Clock& clock) {
  if (make_client == nullptr) return absl::InvalidArgumentError("fleet: make_client is null, wants a client factory");
  return std::unique_ptr<Fleet>(new Fleet(options, std::move(make_client), clock));
}

Fleet::Fleet(const Options& options, ClientFactory make_client, const Clock& clock)
    : options_(options),
      make_client_(std::move(make_client)),
      clock_(clock),
      cards_(WithOutcome(options.cards, [this] { LookWhetherReady(); }), clock),
      prober_(options.prober, clock,
              [this](const auto& link, const absl::Status& why) { RemoveUnresponsive(link, why); }) {}

void Fleet::OnSnapshot(const std::string& incarnation, std::vector<EngineStatus> engines) {
  std::vector<std::shared_ptr<EngineLink>> stalled;
  {
    absl::MutexLock lock(&mutex_);
    Replace(incarnation, std::move(engines), stalled);
  }
  for (const auto& link : stalled) MarkStalledLost(link);
  LookWhetherReady();
}

void Fleet::LookWhetherReady() {
  {
    absl::MutexLock lock(&mutex_);
    if (ready_ || !incarnation_.has_value() || !cards_.HasTriedAll()) return;
    ready_ = true;
  }
  if (options_.on_ready) options_.on_ready();
}

void Fleet::Replace(const std::string& incarnation, std::vector<EngineStatus> engines,
                    std::vector<std::shared_ptr<EngineLink>>& stalled) {
  const bool new_broker = incarnation_.has_value() && *incarnation_ != incarnation;
  LOG(INFO) << (new_broker ? "restarted broker " : "broker ") << incarnation << ": snapshot of " << engines.size()
            << " engines";
  DropAbsent(engines, new_broker);
  for (EngineStatus& engine : engines) stalled.push_back(Put(std::move(engine)));
  incarnation_ = incarnation;
  lost_broker_.reset();
  UpdateWantedCards();
}

// Engines that are missing from the snapshot are pinged: at once, or after a while if the broker has restarted.
void Fleet::DropAbsent(const std::vector<EngineStatus>& engines, bool new_broker) {
  std::set<std::string> present;
  for (const EngineStatus& engine : engines) present.insert(engine.info.name);
  const absl::Time first_probe = clock_.Now() + (new_broker ? options_.restart_grace : absl::ZeroDuration());
  for (auto it = engines_.begin(); it != engines_.end();) {
    Entry& entry = it->second;
    const bool absent = !present.contains(it->first);
    const auto next = std::next(it);
    if (absent && entry.link == nullptr) {
      Erase(it);
    } else if (absent && !entry.probed) {
      StartProbing(entry, first_probe);
    }
    it = next;
  }
}

void Fleet::StartProbing(Entry& entry, absl::Time first_probe) {
  entry.probed = true;
  prober_.StartProbing(entry.link, first_probe);
}

// Called by the prober. At this moment the broker may have found the engine again, or another process may have its
// name.
void Fleet::RemoveUnresponsive(const std::shared_ptr<EngineLink>& link, const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    const auto it = engines_.find(link->name());
    if (it != engines_.end() && it->second.link == link) {
      if (!it->second.probed) return;
      LOG(INFO) << "engine " << link->name() << " is given up: " << why;
      Erase(it);
      UpdateWantedCards();
    }
  }
  // Where another process is at its address, what it carried has broken already, or is served by that one.
  if (absl::IsNotFound(why)) return;
  link->MarkLost(absl::UnavailableError("it died: neither the broker nor the gateway hears anything of it"));
}

void Fleet::OnUpdate(EngineStatus engine) {
  std::shared_ptr<EngineLink> stalled;
  {
    absl::MutexLock lock(&mutex_);
    auto it = engines_.find(engine.info.name);
    const bool changed = it == engines_.end() || it->second.status.info != engine.info;
    stalled = Put(std::move(engine));
    if (changed) UpdateWantedCards();
  }
  MarkStalledLost(stalled);
}

void Fleet::OnRemoved(const std::string& engine_name, bool died) {
  absl::MutexLock lock(&mutex_);
  const auto it = engines_.find(engine_name);
  if (it == engines_.end()) return;
  Entry& entry = it->second;
  LOG(INFO) << "engine " << engine_name << (died ? " died, says the broker" : " left");
  if (died && entry.link != nullptr) return StartProbing(entry, clock_.Now());
  if (entry.link != nullptr) prober_.StopProbing(*entry.link);
  Erase(it);
  UpdateWantedCards();
}

void Fleet::Erase(std::map<std::string, Entry>::iterator engine) {
  const absl::Time now = clock_.Now();
  std::erase_if(left_, [&](const auto& left) { return left.second < now - options_.remembered; });
  left_[engine->second.status.info.model_name] = now;
  engines_.erase(engine);
}

// Keeps the link as long as it connects to the same process, so that its count of requests under way stays right.
std::shared_ptr<EngineLink> Fleet::Put(EngineStatus engine) {
  Entry& entry = engines_[engine.info.name];
  const EngineInfo& old = entry.status.info;
  const bool same_way = entry.link != nullptr && old.instance_id == engine.info.instance_id &&
                        old.address == engine.info.address && old.model_card_hash == engine.info.model_card_hash &&
                        old.model_name == engine.info.model_name;
  const bool stalled = engine.info.state == EngineState::kStalled;
  const bool changed = stalled != (old.state == EngineState::kStalled);
  if (old != engine.info) {
    LOG(INFO) << RequestTag{{}, {}, engine.info.model_name} << "engine " << engine.info.name << " is "
              << Name(engine.info.state) << " at " << engine.info.address;
  }
  if (same_way && entry.probed) prober_.StopProbing(*entry.link);
  if (engine.info.address.empty()) {
    entry.link.reset();
  } else if (!same_way) {
    entry.link = std::make_shared<EngineLink>(engine.info.name, engine.info.model_name, make_client_(engine.info));
  }
  const int64_t reported = engine.load.running_requests + engine.load.waiting_requests;
  const int64_t ours = entry.link == nullptr ? 0 : entry.link->in_flight();
  entry.requests_of_others = std::max<int64_t>(0, reported - ours);
  entry.status = std::move(engine);
  entry.probed = false;
  if (!changed || entry.link == nullptr) return nullptr;
  if (stalled) return entry.link;
  entry.link->ClearLost();
  return nullptr;
}

void Fleet::UpdateWantedCards() {
  CardStore::Wanted wanted;
  for (const auto& [name, entry] : engines_) {
    const EngineInfo& info = entry.status.info;
    const bool answers = entry.link != nullptr && info.state != EngineState::kStarting;
    if (answers && !info.model_card_hash.empty()) wanted[info.model_card_hash].push_back(entry.link);
  }
  cards_.SetWanted(std::move(wanted));
}

bool Fleet::has_snapshot() const {
  absl::MutexLock lock(&mutex_);
  return incarnation_.has_value();
}

bool Fleet::ready() const {
  absl::MutexLock lock(&mutex_);
  return ready_;
}

void Fleet::OnBrokerLost() {
  absl::MutexLock lock(&mutex_);
  if (!lost_broker_.has_value()) lost_broker_ = clock_.Now();
}

std::optional<absl::Duration> Fleet::table_age() const {
  absl::MutexLock lock(&mutex_);
  if (!incarnation_.has_value()) return std::nullopt;
  return lost_broker_.has_value() ? clock_.Now() - *lost_broker_ : absl::ZeroDuration();
}

std::optional<ModelView> Fleet::Find(const std::string& model_name) const {
  absl::MutexLock lock(&mutex_);
  std::vector<const Entry*> entries;
  for (const auto& [name, entry] : engines_) {
    if (entry.status.info.model_name == model_name) entries.push_back(&entry);
  }
  if (entries.empty()) return std::nullopt;
  return View(model_name, entries);
}

bool Fleet::LeftOfLate(const std::string& model_name) const {
  absl::MutexLock lock(&mutex_);
  const auto left = left_.find(model_name);
  return left != left_.end() && clock_.Now() - left->second <= options_.remembered;
}

std::vector<ModelView> Fleet::Models() const {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, std::vector<const Entry*>> by_model;
  for (const auto& [name, entry] : engines_) by_model[entry.status.info.model_name].push_back(&entry);
  std::vector<ModelView> models;
  for (const auto& [name, entries] : by_model) models.push_back(View(name, entries));
  return models;
}

// Engines of one model may run different files: the token ids are those of the card that most READY engines have, so that
// one that starts or ends with another file keeps nobody from the others.
ModelView Fleet::View(const std::string& model_name, const std::vector<const Entry*>& entries) const {
  struct Card {
    std::string hash;
    absl::StatusOr<std::shared_ptr<const ModelText>> text;
    int64_t ready = 0;
  };
  ModelView view;
  view.name = model_name;
  std::vector<Card> cards;  // in the order of their first engines
  std::vector<std::pair<std::string, EngineView>> by_card;
  for (const Entry* entry : entries) {
    const EngineInfo& info = entry->status.info;
    const int64_t others = lost_broker_.has_value() || entry->probed ? 0 : entry->requests_of_others;
    const bool suspect = entry->link != nullptr && clock_.Now() - entry->link->last_failure() < options_.suspected;
    by_card.emplace_back(info.model_card_hash,
                         EngineView{entry->link, info.state, info.max_model_len_tokens, others, suspect});
    auto card = std::ranges::find(cards, info.model_card_hash, &Card::hash);
    if (card == cards.end()) card = cards.insert(card, {info.model_card_hash, cards_.Text(info.model_card_hash)});
    card->ready += entry->link != nullptr && info.state == EngineState::kReady ? 1 : 0;
  }
  Card& card = *std::ranges::max_element(cards, {}, [](const Card& c) { return c.text.ok() ? c.ready : -1; });
  view.text = std::move(card.text);
  for (auto& [hash, engine] : by_card) {
    if (!view.text.ok() || hash == card.hash) view.engines.push_back(std::move(engine));
  }
  return view;
}

}  // namespace swiftcache::gateway::fleet
