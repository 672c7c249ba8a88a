// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/relay_impl.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/relay/access_log.h"
#include "gateway/relay/prompt.h"
#include "gateway/route/route.h"

namespace swiftcache::gateway::relay {
namespace {

absl::Status BrokerNotHeard() {
  return absl::UnavailableError("the gateway has not heard of the broker yet: try again shortly, check --broker");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RelayImpl>> RelayImpl::Create(const Options& options, fleet::Fleet& fleet,
                                                             const Clock& clock, Metrics& metrics) {
  if (options.id_prefix.empty()) return absl::InvalidArgumentError("relay: id_prefix is empty, wants a unique prefix");
  return std::unique_ptr<RelayImpl>(new RelayImpl(options, fleet, clock, metrics));
}

RelayImpl::RelayImpl(const Options& options, fleet::Fleet& fleet, const Clock& clock, Metrics& metrics)
    : options_(options), fleet_(fleet), clock_(clock), metrics_(metrics) {}

RelayImpl::~RelayImpl() { Stop(clock_.Now()); }

absl::StatusOr<std::shared_ptr<GenerateCall>> RelayImpl::Generate(GenerateRequest request,
                                                                  std::shared_ptr<GenerateSink> sink) {
  request.arrived = std::min(request.arrived, clock_.Now());
  const std::string own_id = NewId();
  if (request.request_id.empty()) request.request_id = own_id;
  if (!Enter()) {
    const absl::Status why = absl::UnavailableError("the gateway is draining: send the request to another gateway");
    Refuse(request, why, Refusal::kDraining);
    return why;
  }
  const absl::Cleanup leave = [this] { Leave(); };  // where it throws, too: Stop waits for it
  return Begin(std::move(request), std::move(sink), own_id);
}

std::string RelayImpl::NewId() { return absl::StrCat(options_.id_prefix, "-", next_id_.fetch_add(1)); }

absl::StatusOr<std::shared_ptr<GenerateCall>> RelayImpl::Begin(GenerateRequest request,
                                                               std::shared_ptr<GenerateSink> sink,
                                                               const std::string& own_id) {
  absl::StatusOr<RelayCall::Inputs> inputs = Prepare(request);
  if (!inputs.ok()) {
    Refuse(request, inputs.status(), RefusalOf(inputs.status()));
    return inputs.status();
  }
  inputs->engine_id = absl::StrCat(request.request_id, "~", own_id);
  inputs->request = std::move(request);
  inputs->sink = std::move(sink);
  auto call = std::make_shared<RelayCall>(*std::move(inputs), RelayEnv{fleet_, clock_, metrics_, options_.first_engine},
                                          [this](RelayCall* ended) { Forget(ended); });
  Register(call);
  absl::Status started = call->Start();
  if (!started.ok()) {
    Forget(call.get());
    return started;
  }
  return call;
}

// Takes the input out of the request: a text is of no more use once it is token ids.
absl::StatusOr<RelayCall::Inputs> RelayImpl::Prepare(GenerateRequest& request) {
  ASSIGN_OR_RETURN(fleet::ModelView model, FindModel(request.model));
  RETURN_IF_ERROR(CheckRequest(request, options_.limits));
  RETURN_IF_ERROR(CheckIds("sampling.stop_token_ids", request.sampling.stop_token_ids, (*model.text)->vocab_size()));
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, PromptOf(request, model));
  return RelayCall::Inputs{
      .request = {}, .engine_id = {}, .model = std::move(model), .prompt = std::move(prompt), .sink = {}};
}

absl::StatusOr<std::vector<int32_t>> RelayImpl::PromptOf(GenerateRequest& request, const fleet::ModelView& model) {
  const absl::Time begin = clock_.Now();
  Input input = std::exchange(request.input, {});
  const bool was_text = !std::holds_alternative<std::vector<int32_t>>(input);
  const text::EncodeOptions of_text{.add_special = request.add_special, .parse_special = !request.plain_prompt};
  absl::StatusOr<std::vector<int32_t>> ids =
      PromptIds(**model.text, std::move(input), of_text, model.max_model_len_tokens());
  if (was_text) metrics_.Tokenized(model.name, clock_.Now() - begin);
  return ids;
}

absl::StatusOr<fleet::ModelView> RelayImpl::FindModel(const std::string& name) const {
  std::optional<fleet::ModelView> model = fleet_.Find(name);
  if (!model.has_value()) {
    if (!fleet_.has_snapshot()) return BrokerNotHeard();
    if (fleet_.LeftOfLate(name)) {
      return absl::UnavailableError(
          absl::StrCat("no engine of model ", name, " is there: its last one left; try again once one is started"));
    }
    return route::UnknownModel(name, fleet_.Models());
  }
  if (model->text.ok()) return *std::move(model);
  const absl::Status& why = model->text.status();
  if (!absl::IsInvalidArgument(why) && !absl::IsUnimplemented(why)) {
    return absl::UnavailableError(absl::StrCat("model ", name, " is not ready: its card is being fetched (",
                                               why.message(), "); try again shortly"));
  }
  return absl::InvalidArgumentError(absl::StrCat("model ", name, " cannot be used: ", why.message()));
}

absl::Status RelayImpl::CheckSizes(const std::string& model_name, const RequestSizes& sizes) {
  ASSIGN_OR_RETURN(const fleet::ModelView model, FindModel(model_name));
  RETURN_IF_ERROR(relay::CheckSizes(sizes, options_.limits));
  return CheckLength(sizes.token_ids, model.max_model_len_tokens());
}

void RelayImpl::Refused(GenerateRequest request, const absl::Status& why) {
  if (request.request_id.empty()) request.request_id = NewId();
  request.arrived = std::min(request.arrived, clock_.Now());
  Refuse(request, why, RefusalOf(why));
}

void RelayImpl::Refuse(const GenerateRequest& request, const absl::Status& status, Refusal why) {
  const bool known = fleet_.Find(request.model).has_value() || fleet_.LeftOfLate(request.model);
  const std::string model = known ? request.model : std::string();
  metrics_.NotStarted(model, status);
  metrics_.Refused(model, why);
  LogAccess({.request = request, .model = model, .status = status, .total = clock_.Now() - request.arrived});
}

absl::StatusOr<std::vector<int32_t>> RelayImpl::Tokenize(const std::string& model_name,
                                                         const std::variant<std::string, Chat>& input,
                                                         bool parse_special) {
  ASSIGN_OR_RETURN(fleet::ModelView model, FindModel(model_name));
  const fleet::ModelText& text = **model.text;
  if (const auto* chat = std::get_if<Chat>(&input)) {
    RETURN_IF_ERROR(CheckChat(*chat, options_.limits));
    RETURN_IF_ERROR(CheckBytes(text, input, model.max_model_len_tokens()));
    return ChatIds(text, *chat);
  }
  const auto& prompt = std::get<std::string>(input);
  if (prompt.empty()) return std::vector<int32_t>{};
  RETURN_IF_ERROR(CheckPrompt(prompt, options_.limits));
  RETURN_IF_ERROR(CheckBytes(text, input, model.max_model_len_tokens()));
  return text.tokenizer().Encode(prompt, {.add_special = true, .parse_special = parse_special});
}

absl::StatusOr<std::string> RelayImpl::Detokenize(const std::string& model_name, std::span<const int32_t> ids) {
  ASSIGN_OR_RETURN(fleet::ModelView model, FindModel(model_name));
  RETURN_IF_ERROR(CheckIdCount(ids, options_.limits));
  RETURN_IF_ERROR(CheckIds("token_ids", ids, (*model.text)->vocab_size()));
  return (*model.text)->tokenizer().Decode(ids, /*skip_special=*/false);
}

absl::StatusOr<std::vector<ModelInfo>> RelayImpl::ListModels() {
  if (!fleet_.has_snapshot()) return BrokerNotHeard();
  std::vector<ModelInfo> models;
  for (const fleet::ModelView& model : fleet_.Models()) {
    if (!route::IsServed(model)) continue;
    models.push_back({model.name, model.max_model_len_tokens(), static_cast<int32_t>(model.engines.size())});
  }
  return models;
}

void RelayImpl::UpdateMetrics() {
  const absl::Time now = clock_.Now();
  std::map<std::string, int64_t> ready;
  for (const fleet::ModelView& model : fleet_.Models()) {
    int64_t& engines = ready[model.name];
    for (const fleet::EngineView& engine : model.engines) {
      if (engine.link == nullptr) continue;
      metrics_.Serves(model.name, engine.link->name(), now);
      engines += engine.state == fleet::EngineState::kReady ? 1 : 0;
    }
  }
  metrics_.ReadyEngines(ready, now);
}

bool RelayImpl::Enter() {
  TimedMutexLock lock(&mutex_);
  if (refusing_) return false;
  ++entering_;
  return true;
}

void RelayImpl::Leave() {
  TimedMutexLock lock(&mutex_);
  --entering_;
}

void RelayImpl::RefuseNew() {
  TimedMutexLock lock(&mutex_);
  refusing_ = true;
}

void RelayImpl::Register(const std::shared_ptr<RelayCall>& call) {
  TimedMutexLock lock(&mutex_);
  calls_[call.get()] = call;
}

void RelayImpl::Forget(RelayCall* call) {
  TimedMutexLock lock(&mutex_);
  calls_.erase(call);
}

// A call that threw as it began is gone and was not forgotten.
bool RelayImpl::Idle() const {
  return NoneEnters() && std::ranges::all_of(calls_, [](const auto& call) { return call.second.expired(); });
}

void RelayImpl::Stop(absl::Time deadline) {
  RefuseNew();
  std::vector<std::shared_ptr<RelayCall>> late;
  {
    TimedMutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &RelayImpl::Idle), deadline - clock_.Now());
    mutex_.Await(absl::Condition(this, &RelayImpl::NoneEnters));  // what is being tokenised is a call soon, or an error
    for (const auto& [call, weak] : calls_) {
      if (std::shared_ptr<RelayCall> alive = weak.lock()) late.push_back(std::move(alive));
    }
  }
  for (const auto& call : late) {
    call->Abort(absl::UnavailableError("the gateway was stopped before the answer was complete; send it to another"));
  }
  TimedMutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &RelayImpl::Idle));
}

}  // namespace swiftcache::gateway::relay
