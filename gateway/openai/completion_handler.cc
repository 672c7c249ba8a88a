// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/completion_handler.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gateway/openai/api_error.h"
#include "gateway/relay/prompt.h"

namespace swiftcache::gateway::openai {
namespace {

constexpr char kEvents[] = "text/event-stream; charset=utf-8";

std::string ResponseId(Endpoint endpoint, const std::string& request_id) {
  return (endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + request_id;
}

absl::Status WithParam(absl::Status status, Endpoint endpoint) {
  if (absl::IsNotFound(status)) return AboutField(std::move(status), "model");
  if (absl::IsOutOfRange(status))
    return AboutField(std::move(status), endpoint == Endpoint::kChat ? "messages" : "prompt");
  absl::string_view message = status.message();
  if (!absl::IsInvalidArgument(status) || !absl::ConsumePrefix(&message, absl::StrCat(relay::kPromptIds, "["))) {
    return status;
  }
  return FieldError("prompt", absl::StrCat("prompt[", message));
}

// The prompt's text, if the client sent text and wants it back.
std::optional<std::string> TextToEcho(const ResponseOptions& options, const relay::GenerateRequest& request) {
  const auto* text = std::get_if<std::string>(&request.input);
  return options.echo && text != nullptr ? std::optional<std::string>(*text) : std::nullopt;
}

absl::Status NoRoom(const ByteBudget& budget) {
  return absl::ResourceExhaustedError(
      absl::StrCat("echoes, and answers that are not streamed, take the ", budget.limit_bytes(),
                   " bytes that they may: stream the answer, ask for less, or try again later"));
}

// What an answer took of the budget, which it returns with its end.
struct Held {
  std::shared_ptr<ByteBudget> budget;
  ByteShare share;
};

}  // namespace

/// Receives the relay's events of one prompt.
class CompletionHandler::Sink final : public relay::GenerateSink {
 public:
  Sink(std::shared_ptr<CompletionHandler> handler, size_t prompt) : handler_(std::move(handler)), prompt_(prompt) {}
  void OnEvent(relay::GenerateEvent event) override { handler_->OnUpdate(prompt_, std::move(event)); }
  void OnDone(absl::Status status) override { handler_->OnUpdate(prompt_, std::move(status)); }

 private:
  const std::shared_ptr<CompletionHandler> handler_;
  const size_t prompt_;
};

CompletionHandler::CompletionHandler(ResponseOptions options, const std::string& request_id, int64_t created_s,
                                     std::shared_ptr<HttpResponder> responder, std::shared_ptr<ByteBudget> budget)
    : options_(std::move(options)),
      request_id_(request_id),
      writer_(options_, ResponseId(options_.endpoint, request_id), created_s),
      responder_(std::move(responder)),
      budget_(std::move(budget)),
      held_(*budget_) {}

void CompletionHandler::Run(relay::Relay& relay, std::vector<relay::GenerateRequest> prompts) {
  {
    absl::MutexLock lock(&mutex_);
    prompts_.resize(prompts.size());
    answers_.resize(prompts.size() * static_cast<size_t>(options_.n));
    prompts_left_ = prompts.size();
  }
  responder_->OnDisconnect([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->OnClientGone();
  });
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (!Start(relay, std::move(prompts[i]), i)) return;
  }
  Ready();
}

// Nothing: it is not over. A long prompt waits for a thread: its client may have left.
std::optional<absl::Status> CompletionHandler::WhyOver() {
  absl::MutexLock lock(&mutex_);
  if (phase_ != Phase::kOver) return std::nullopt;
  return why_over_;
}

// False: the response is over.
bool CompletionHandler::Start(relay::Relay& relay, relay::GenerateRequest request, size_t prompt) {
  if (std::optional<absl::Status> why = WhyOver()) {
    relay.Refused(std::move(request), *std::move(why));
    return false;
  }
  std::optional<std::string> text = TextToEcho(options_, request);
  auto call = relay.Generate(std::move(request), std::make_shared<Sink>(shared_from_this(), prompt));
  if (!call.ok()) {
    Fail(call.status());
    return false;
  }
  if (!Adopt(*call, prompt)) {
    (*call)->Cancel(*WhyOver());
    return false;
  }
  if (!options_.echo) return true;
  // Ids are turned into text only now, since the relay has checked their number.
  return Echo(text ? *std::move(text) : relay.Detokenize(options_.model, (*call)->prompt_ids()), prompt);
}

// False: the response is over already.
bool CompletionHandler::Adopt(const std::shared_ptr<relay::GenerateCall>& call, size_t prompt) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kOver) return false;
  prompts_[prompt].tokens = static_cast<int64_t>(call->prompt_ids().size());
  calls_.push_back(call);
  return true;
}

bool CompletionHandler::Echo(absl::StatusOr<std::string> text, size_t prompt) {
  const absl::Status status = text.ok() ? KeepEcho(*std::move(text), prompt) : text.status();
  if (!status.ok()) Fail(status);
  return status.ok();
}

absl::Status CompletionHandler::KeepEcho(std::string text, size_t prompt) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kOver) return why_over_;
  echo_bytes_ += static_cast<int64_t>(text.size()) * options_.n;
  if (echo_bytes_ > options_.max_echo_bytes) {
    return FieldError("echo", absl::StrCat("echo is true with ", echo_bytes_, " bytes in all answers, wants at most ",
                                           options_.max_echo_bytes, ": send fewer, or leave it out"));
  }
  if (!held_.Grow(static_cast<int64_t>(text.size()))) return NoRoom(*budget_);
  prompts_[prompt].echo = std::move(text);
  return absl::OkStatus();
}

void CompletionHandler::Ready() {
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kStarting) phase_ = Phase::kRunning;
    for (auto& [prompt, update] : std::exchange(early_, {})) Handle(prompt, std::move(update));
  }
  Deliver();
}

void CompletionHandler::OnUpdate(size_t prompt, CallUpdate update) {
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kStarting) {
      early_.emplace_back(prompt, std::move(update));
    } else {
      Handle(prompt, std::move(update));
    }
  }
  Deliver();
}

void CompletionHandler::OnClientGone() {
  {
    absl::MutexLock lock(&mutex_);
    GiveUp();
  }
  CancelIfOver();
}

void CompletionHandler::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    EndWith(status);
  }
  Deliver();
}

void CompletionHandler::Deliver() {
  for (std::vector<Output> outputs = TakeOutputs(); !outputs.empty(); outputs = TakeOutputs()) {
    bool client_is_there = true;
    for (const Output& output : outputs) client_is_there = output(*responder_) && client_is_there;
    Delivered(client_is_there);
  }
  CancelIfOver();
}

// A thread that adds output while another delivers leaves it to that other thread, which looks again.
std::vector<CompletionHandler::Output> CompletionHandler::TakeOutputs() {
  absl::MutexLock lock(&mutex_);
  if (delivering_ || outbox_.empty()) return {};
  delivering_ = true;
  return std::exchange(outbox_, {});
}

void CompletionHandler::Delivered(bool client_is_there) {
  absl::MutexLock lock(&mutex_);
  delivering_ = false;
  if (!client_is_there) phase_ = Phase::kOver;
}

// Cancel has no effect on calls that have ended.
void CompletionHandler::CancelIfOver() {
  Calls ended;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kOver) ended = std::exchange(calls_, {});
    why = why_over_;
  }
  for (const auto& call : ended) call->Cancel(why);
}

void CompletionHandler::Handle(size_t prompt, CallUpdate update) {
  if (phase_ == Phase::kOver) return;
  if (auto* event = std::get_if<relay::GenerateEvent>(&update)) {
    HandleEvent(prompt, *event);
  } else {
    HandleDone(std::get<absl::Status>(update));
  }
}

void CompletionHandler::HandleEvent(size_t prompt, const relay::GenerateEvent& event) {
  if (event.index < 0 || event.index >= options_.n) {
    return EndWith(
        absl::InternalError(absl::StrCat("an answer of index ", event.index, " came, wants 0..", options_.n - 1)));
  }
  Count(prompt, event);
  const size_t place = prompt * static_cast<size_t>(options_.n) + static_cast<size_t>(event.index);
  Choice& choice = answers_[place].choice;
  const int64_t bytes_before = choice.bytes();
  std::string opening = Open(prompt, place);
  Append(event, choice);
  if (options_.stream) return Stream(place, std::move(opening));
  if (!held_.Grow(choice.bytes() - bytes_before)) EndWith(NoRoom(*budget_));
}

void CompletionHandler::Count(size_t prompt, const relay::GenerateEvent& event) {
  completion_tokens_ += static_cast<int64_t>(event.token_ids.size());
  if (!event.usage) return;
  Prompt& counted = prompts_[prompt];
  counted.tokens = event.usage->prompt_tokens;
  if (event.index != 0) return;
  counted.cached = {.cached_local = event.usage->cached_local_tokens,
                    .cached_donor = event.usage->cached_donor_tokens,
                    .cached_host = event.usage->cached_host_tokens};
}

// The chunks that come before the first token of a choice, if it is streamed; none later.
std::string CompletionHandler::Open(size_t prompt, size_t place) {
  Progress& progress = answers_[place];
  if (std::exchange(progress.opened, true)) return {};
  if (options_.echo) progress.choice.text = prompts_[prompt].echo;
  if (!options_.stream) return {};
  const auto index = static_cast<int32_t>(place);
  const std::optional<UsageTotals> usage = UsageOnChunk();
  if (options_.endpoint == Endpoint::kChat) return writer_.RoleChunk(index, usage);
  return options_.echo ? writer_.Chunk(index, progress.choice, usage) : std::string();
}

void CompletionHandler::Append(const relay::GenerateEvent& event, Choice& choice) const {
  choice.text += event.text;
  for (const relay::TokenLogprob& token : event.logprobs) choice.logprobs.Add(options_.endpoint, token);
  if (event.finish) choice.finish = event.finish;
}

void CompletionHandler::Stream(size_t place, std::string out) {
  Choice& choice = answers_[place].choice;
  const bool silent =
      choice.text.empty() && choice.logprobs.bytes() == 0 && !choice.finish && !options_.usage_on_chunks;
  if (!silent) out += writer_.Chunk(static_cast<int32_t>(place), choice, UsageOnChunk());
  if (out.empty()) return;
  if (!std::exchange(begun_, true)) PutBegin({{"Cache-Control", "no-cache"}});
  PutWrite(std::move(out));
}

void CompletionHandler::HandleDone(const absl::Status& status) {
  if (!status.ok()) return EndWith(status);
  if (--prompts_left_ == 0) End();
}

void CompletionHandler::End() {
  phase_ = Phase::kOver;
  if (!options_.stream) {
    std::vector<Choice> choices;
    for (Progress& progress : answers_) choices.push_back(std::move(progress.choice));
    auto held = std::make_shared<Held>(Held{budget_, std::move(held_)});
    return PutSend(200, writer_.Whole(std::move(choices), Usage()), {}, std::move(held));
  }
  if (!begun_) PutBegin({});
  std::string out;
  if (options_.usage_at_end) out = writer_.UsageChunk(Usage());
  PutWrite(out += kDone);
  PutFinish();
}

// The calls that hold this may last until their engine says that they have ended.
void CompletionHandler::GiveUp() {
  phase_ = Phase::kOver;
  early_.clear();
  answers_.clear();
  for (Prompt& prompt : prompts_) std::string().swap(prompt.echo);
  held_.Reset();
}

void CompletionHandler::EndWith(const absl::Status& error) {
  if (phase_ == Phase::kOver) return;
  why_over_ = error;
  GiveUp();
  const absl::Status status = WithParam(error, options_.endpoint);
  if (!begun_) return PutSend(HttpStatusOf(status), ErrorBody(status), ErrorHeaders(status));
  PutWrite(absl::StrCat("data: ", ErrorBody(status), "\n\n"));
  PutFinish();
}

void CompletionHandler::PutBegin(HttpHeaders more) {
  outbox_.emplace_back([headers = Headers(std::move(more))](HttpResponder& responder) {
    responder.StartStream(200, kEvents, headers);
    return true;
  });
}

void CompletionHandler::PutSend(int status, std::string body, HttpHeaders more, std::shared_ptr<void> held) {
  outbox_.emplace_back([status, body = std::move(body), headers = Headers(std::move(more)),
                        held = std::move(held)](HttpResponder& responder) mutable {
    responder.Send(status, kJson, std::move(body), std::move(headers), std::move(held));
    return true;
  });
}

void CompletionHandler::PutWrite(std::string bytes) {
  outbox_.emplace_back(
      [bytes = std::move(bytes)](HttpResponder& responder) mutable { return responder.Write(std::move(bytes)); });
}

void CompletionHandler::PutFinish() {
  outbox_.emplace_back([](HttpResponder& responder) {
    responder.Finish();
    return true;
  });
}

UsageTotals CompletionHandler::Usage() const {
  UsageTotals sum;
  sum.completion = completion_tokens_;
  for (const Prompt& prompt : prompts_) {
    sum.prompt += prompt.tokens;
    sum.cached_local += prompt.cached.cached_local;
    sum.cached_donor += prompt.cached.cached_donor;
    sum.cached_host += prompt.cached.cached_host;
  }
  return sum;
}

std::optional<UsageTotals> CompletionHandler::UsageOnChunk() const {
  return options_.usage_on_chunks ? std::optional(Usage()) : std::nullopt;
}

HttpHeaders CompletionHandler::Headers(HttpHeaders more) const {
  more.emplace_back("X-Request-Id", request_id_);
  return more;
}

}  // namespace swiftcache::gateway::openai
