// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/parse_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "gateway/openai/api_error.h"

namespace swiftcache::gateway::openai {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

ParsedRequest Completion(const std::string& fields) {
  auto parsed = ParseRequest(Endpoint::kCompletions, "{\"model\":\"m\"," + fields + "}");
  EXPECT_TRUE(parsed.ok()) << fields << ": " << parsed.status();
  return parsed.ok() ? *std::move(parsed) : ParsedRequest{.prompts = {{}}, .answer = {}};
}

ParsedRequest Chat(const std::string& fields) {
  auto parsed = ParseRequest(Endpoint::kChat, "{\"model\":\"m\"," + fields + "}");
  EXPECT_TRUE(parsed.ok()) << fields << ": " << parsed.status();
  if (parsed.ok()) return *std::move(parsed);
  ParsedRequest nothing{.prompts = {{}}, .answer = {}};
  nothing.prompts[0].input = relay::Chat{};
  return nothing;
}

// "param: message" of a body that must be refused.
std::string Refusal(Endpoint endpoint, const std::string& body) {
  const auto parsed = ParseRequest(endpoint, body);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << body.substr(0, 200);
  if (parsed.ok()) return "";
  const auto error = nlohmann::json::parse(ErrorBody(parsed.status()))["error"];
  return absl::StrCat(error["param"].is_null() ? "-" : error["param"].get<std::string>(), ": ",
                      error["message"].get<std::string>());
}
std::string RefusedField(const std::string& field) {
  return Refusal(Endpoint::kCompletions, "{\"model\":\"m\",\"prompt\":\"p\"," + field + "}");
}

constexpr char kHello[] = R"("messages":[{"role":"user","content":"hello"}])";

TEST(ParseCompletion, PromptMayBeTextTextsIdsOrListsOfIds) {
  EXPECT_EQ(std::get<std::string>(Completion(R"("prompt":"hi")").prompts[0].input), "hi");
  const auto texts = Completion(R"("prompt":["a","b"])").prompts;
  ASSERT_THAT(texts, SizeIs(2));
  EXPECT_EQ(std::get<std::string>(texts[1].input), "b");
  const auto ids = Completion(R"("prompt":[1,2,3])").prompts;
  ASSERT_THAT(ids, SizeIs(1));
  EXPECT_THAT(std::get<std::vector<int32_t>>(ids[0].input), ElementsAre(1, 2, 3));
  const auto lists = Completion(R"("prompt":[[1],[2,3]])").prompts;
  ASSERT_THAT(lists, SizeIs(2));
  EXPECT_THAT(std::get<std::vector<int32_t>>(lists[1].input), ElementsAre(2, 3));
}

TEST(ParseCompletion, DefaultsAreThoseOfOpenAi) {
  const auto parsed = Completion(R"("prompt":"p")");
  const fleet::Sampling& sampling = parsed.prompts[0].sampling;
  EXPECT_EQ(sampling.max_tokens, 16);
  EXPECT_FALSE(sampling.temperature.has_value());
  EXPECT_FALSE(sampling.logprobs.has_value());
  EXPECT_TRUE(parsed.prompts[0].add_special);
  EXPECT_FALSE(parsed.answer.stream || parsed.answer.echo || parsed.answer.logprobs || parsed.answer.usage_at_end);
  EXPECT_EQ(parsed.answer.n, 1);
}

TEST(ParseCompletion, EveryFieldReachesTheRelay) {
  const auto parsed = Completion(R"("prompt":"p","max_tokens":5,"temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,
      "seed":-7,"n":3,"best_of":3,"stop":["x","y"],"stop_token_ids":[1,2],"ignore_eos":true,"presence_penalty":-2,
      "frequency_penalty":2,"repetition_penalty":1.5,"logprobs":4,"cache_salt":"s","priority":-3,"user":"u",
      "add_special_tokens":false,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  const relay::GenerateRequest& request = parsed.prompts[0];
  const fleet::Sampling& sampling = request.sampling;
  EXPECT_EQ(sampling.max_tokens, 5);
  EXPECT_EQ(sampling.temperature, 0.0f);
  EXPECT_EQ(sampling.top_p, 0.5f);
  EXPECT_EQ(sampling.top_k, -1);
  EXPECT_EQ(sampling.min_p, 0.1f);
  EXPECT_EQ(sampling.seed, static_cast<uint64_t>(-7));
  EXPECT_EQ(sampling.n, 3);
  EXPECT_THAT(sampling.stop.list(), ElementsAre("x", "y"));
  EXPECT_THAT(sampling.stop_token_ids, ElementsAre(1, 2));
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.presence_penalty, -2.0f);
  EXPECT_EQ(sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.logprobs, 4);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.priority, 3);  // to the relay more is more urgent
  EXPECT_FALSE(request.add_special);
  EXPECT_TRUE(parsed.answer.stream && parsed.answer.usage_at_end && parsed.answer.usage_on_chunks);
}

TEST(ParseCompletion, NullIsAbsentUnknownFieldsAreIgnoredAndWholeFloatsAreWhole) {
  const auto parsed = Completion(
      R"("prompt":"p","temperature":null,"stop":null,"stream_options":null,"logit_bias":{},"x":[[]],"max_tokens":8.0)");
  EXPECT_FALSE(parsed.prompts[0].sampling.temperature.has_value());
  EXPECT_EQ(parsed.prompts[0].sampling.max_tokens, 8);
  EXPECT_THAT(Completion(R"("prompt":"p","stop":"one")").prompts[0].sampling.stop.list(), ElementsAre("one"));
  EXPECT_EQ(Completion(R"("prompt":"p","seed":18446744073709551615)").prompts[0].sampling.seed, ~uint64_t{0});
  EXPECT_FALSE(Completion(R"("prompt":"p","seed":-1)").prompts[0].sampling.seed.has_value()) << "as elsewhere";
}

TEST(ParseCompletion, APromptIsPlainOnRequest) {
  EXPECT_FALSE(Completion(R"("prompt":"p")").prompts[0].plain_prompt);
  EXPECT_TRUE(Completion(R"("prompt":["p","q"],"plain_content":true)").prompts[1].plain_prompt);
}

TEST(ParseChat, ContentMayBeTextOrTextParts) {
  const auto parsed = Chat(R"("messages":[{"role":"developer","content":"be brief"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null}])");
  const auto& chat = std::get<relay::Chat>(parsed.prompts[0].input);
  ASSERT_THAT(chat.messages, SizeIs(3));
  EXPECT_EQ(chat.messages[0].role, "system");
  EXPECT_EQ(chat.messages[1].content, "a\nb");
  EXPECT_EQ(chat.messages[2].content, "");
  EXPECT_TRUE(chat.add_generation_prompt);
}

TEST(ParseChat, VariablesOfTheTemplateAreTextsNumbersOrFlags) {
  const auto variables = [](const std::string& object) {
    return std::get<relay::Chat>(Chat(absl::StrCat(kHello, R"(,"chat_template_kwargs":)", object)).prompts[0].input)
        .template_variables;
  };
  EXPECT_TRUE(variables("null").empty());
  const text::TemplateVariables wanted = {
      {"enable_thinking", false}, {"n", int64_t{3}}, {"heat", 0.5}, {"who", "me"}, {"nothing", std::monostate()}};
  EXPECT_EQ(variables(R"({"enable_thinking":false,"n":3,"heat":0.5,"who":"me","nothing":null})"), wanted);
  const auto refusal = [](const std::string& object) {
    return Refusal(Endpoint::kChat,
                   absl::StrCat(R"({"model":"m",)", kHello, R"(,"chat_template_kwargs":)", object, "}"));
  };
  EXPECT_THAT(refusal(absl::StrCat(R"({")", std::string(257, 'n'), R"(":1})")),
              HasSubstr("chat_template_kwargs has a name of 257 bytes, wants at most 256"));
  EXPECT_THAT(refusal("[]"), HasSubstr("chat_template_kwargs is a list of 0, wants a JSON object"));
  EXPECT_THAT(refusal(R"({"x":{}})"),
              HasSubstr("chat_template_kwargs.x is an object, wants a text, a number, true, false or null"));
}

TEST(ParseChat, AnEffortOfReasoningSwitchesThinkingUnlessTheTemplatesVariableIsSet) {
  const auto variables = [](const std::string& fields) {
    return std::get<relay::Chat>(Chat(absl::StrCat(kHello, ",", fields)).prompts[0].input).template_variables;
  };
  const text::TemplateVariables off = {{"enable_thinking", false}}, on = {{"enable_thinking", true}};
  EXPECT_EQ(variables(R"("reasoning_effort":"none")"), off);
  EXPECT_EQ(variables(R"("reasoning_effort":"low")"), on);
  EXPECT_EQ(variables(R"("reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})"), on);
  EXPECT_EQ(variables(R"("reasoning_effort":"high","chat_template_kwargs":{"enable_thinking":false})"), off);
  for (const char* ignored : {"null", "0.5", "{}"}) {
    EXPECT_TRUE(variables(absl::StrCat(R"("reasoning_effort":)", ignored)).empty()) << ignored;
  }
}

TEST(ParseChat, BothNamesOfTheTokenLimitWorkAndTheNewerWins) {
  EXPECT_FALSE(Chat(kHello).prompts[0].sampling.max_tokens.has_value());
  EXPECT_EQ(Chat(absl::StrCat(kHello, R"(,"max_tokens":3)")).prompts[0].sampling.max_tokens, 3);
  EXPECT_EQ(Chat(absl::StrCat(kHello, R"(,"max_tokens":3,"max_completion_tokens":4)")).prompts[0].sampling.max_tokens,
            4);
}

TEST(ParseChat, LogprobsAreASwitchAndACount) {
  const auto parsed = Chat(absl::StrCat(kHello, R"(,"logprobs":true,"top_logprobs":5)"));
  EXPECT_TRUE(parsed.answer.logprobs);
  EXPECT_EQ(parsed.prompts[0].sampling.logprobs, 5);
  EXPECT_EQ(Chat(absl::StrCat(kHello, R"(,"logprobs":true)")).prompts[0].sampling.logprobs, 0);
  EXPECT_FALSE(Chat(absl::StrCat(kHello, R"(,"logprobs":false)")).prompts[0].sampling.logprobs.has_value());
}

TEST(ParseRequest, RangesAndTypesAreRefusedByNameValueAndLimit) {
  EXPECT_EQ(RefusedField(R"("top_p":7)"), "top_p: top_p is 7, wants a number in (0, 1]");
  EXPECT_EQ(RefusedField(R"("n":0)"), "n: n is 0, wants a whole number in [1, 128]");
  EXPECT_EQ(RefusedField(R"("stream":1)"), "stream: stream is 1, wants true or false");
  EXPECT_EQ(RefusedField(R"("stream_options":{"include_usage":"y"})"),
            "stream_options.include_usage: stream_options.include_usage is \"y\", wants true or false");
  EXPECT_EQ(RefusedField(R"("stream_options":[])"),
            "stream_options: stream_options is a list of 0, wants a JSON object");
  for (const char* field : {R"("temperature":-0.1)",
                            R"("temperature":2.1)",
                            R"("temperature":"1")",
                            R"("top_p":0)",
                            R"("top_k":-2)",
                            R"("top_k":1.5)",
                            R"("min_p":1.1)",
                            R"("max_tokens":0)",
                            R"("max_tokens":3000000000)",
                            R"("max_tokens":true)",
                            R"("n":129)",
                            R"("n":1e30)",
                            R"("presence_penalty":2.1)",
                            R"("frequency_penalty":-2.1)",
                            R"("repetition_penalty":0)",
                            R"("logprobs":21)",
                            R"("logprobs":true)",
                            R"("seed":"a")",
                            R"("seed":1.5)",
                            R"("seed":1e300)",
                            R"("stop":5)",
                            R"("stop":[""])",
                            R"("stop":["a",1])",
                            R"("stop_token_ids":[-1])",
                            R"("stop_token_ids":7)",
                            R"("cache_salt":1)",
                            R"("priority":"high")",
                            R"("priority":-2147483648)",
                            R"("user":{})",
                            R"("echo":"yes")",
                            R"("best_of":2)",
                            R"("add_special_tokens":"no")",
                            R"("ignore_eos":"true")"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_THAT(RefusedField(field), ::testing::StartsWith(name)) << field;
  }
}

TEST(ParseRequest, PromptsAndMessagesOfTheWrongShapeAreRefused) {
  for (const char* prompt : {"5", "true", "{}", "[]", "[[]]", "\"\"", "[\"\"]", "[1,\"a\"]", "[\"a\",1]", "[1,-1]",
                             "[1.5]", "[3000000000]", "[[1],[\"a\"]]", "[{}]", "[null]", "[[[1]]]"}) {
    EXPECT_THAT(Refusal(Endpoint::kCompletions, absl::StrCat(R"({"model":"m","prompt":)", prompt, "}")),
                ::testing::StartsWith("prompt"))
        << prompt;
  }
  for (const char* messages :
       {"5", "[]", "{}", "[5]", "[{}]", R"([{"role":5}])", R"([{"role":""}])", R"([{"role":"user","content":5}])",
        R"([{"role":"user","content":["a"]}])", R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
        R"([{"role":"user","content":[{"type":"text"}]}])", R"([{"role":"user"}])",
        R"([{"role":"assistant","content":null},{"role":"user","content":null}])"}) {
    EXPECT_THAT(Refusal(Endpoint::kChat, absl::StrCat(R"({"model":"m","messages":)", messages, "}")),
                ::testing::StartsWith("messages"))
        << messages;
  }
  EXPECT_THAT(Refusal(Endpoint::kCompletions, R"({"model":"m"})"), HasSubstr("prompt is missing"));
  EXPECT_THAT(Refusal(Endpoint::kChat, R"({"model":"m"})"), HasSubstr("messages is missing"));
  EXPECT_THAT(Refusal(Endpoint::kChat, R"({"messages":[]})"), HasSubstr("model is missing"));
  EXPECT_THAT(Refusal(Endpoint::kChat, R"([1])"), HasSubstr("the body is a list of 1, wants a JSON object"));
}

TEST(ParseRequest, WhatStandsInAPromptsPlaceIsNotQuoted) {
  EXPECT_THAT(Refusal(Endpoint::kCompletions, R"({"model":"m","prompt":[1,"a secret"]})"),
              HasSubstr("prompt[1] is a string, wants a token id"));
  for (const char* messages : {R"("a secret")", R"(["a secret"])", R"([{"role":"user","content":["a secret"]}])",
                               R"([{"role":"user","content":["a secret",5]}])"}) {
    EXPECT_THAT(Refusal(Endpoint::kChat, absl::StrCat(R"({"model":"m","messages":)", messages, "}")),
                AllOf(HasSubstr(" is a string, wants "), Not(HasSubstr("secret"))))
        << messages;
  }
  EXPECT_THAT(Refusal(Endpoint::kChat, R"("a secret")"), HasSubstr("the body is a string, wants a JSON object"));
}

TEST(ParseRequest, LimitsHoldForWhatIsTooMuch) {
  std::string stops = "\"stop\":[\"s\"";
  for (int i = 1; i < 100000; ++i) stops += ",\"s\"";
  EXPECT_EQ(RefusedField(stops + "]"), "stop: stop has 100000 strings, wants at most 16");
  EXPECT_THAT(RefusedField("\"stop\":\"" + std::string(1025, 's') + "\""),
              HasSubstr("has 1025 bytes, wants at most 1024"));
  EXPECT_THAT(Refusal(Endpoint::kCompletions, R"({"prompt":"p","model":")" + std::string(257, 'm') + "\"}"),
              HasSubstr("model has 257 bytes, wants at most 256"));
  EXPECT_THAT(Refusal(Endpoint::kCompletions, R"({"model":"m","prompt":")" + std::string(17 << 20, 'p') + "\"}"),
              HasSubstr("wants at most 16777216"));
  std::string prompts = "[\"p\"";
  for (int i = 1; i < 257; ++i) prompts += ",\"p\"";
  EXPECT_THAT(Refusal(Endpoint::kCompletions, absl::StrCat(R"({"model":"m","prompt":)", prompts, "]}")),
              HasSubstr("prompt has 257 prompts, wants at most 256"));
  EXPECT_THAT(
      Refusal(Endpoint::kCompletions, R"({"model":"m","n":128,"prompt":["1","2","3","4","5","6","7","8","9"]})"),
      HasSubstr("wants at most 1024"));
}

TEST(ParseRequest, AUserThatIsUsedForNothingMayBeLong) {
  const std::string user = absl::StrCat("\"user\":\"", std::string(10'000, 'u'), "\"");
  EXPECT_THAT(Completion(R"("prompt":"p",)" + user).prompts, SizeIs(1));
}

TEST(ParseRequest, EchoTogetherWithLogprobsIsRefused) {
  EXPECT_THAT(RefusedField(R"("echo":true,"logprobs":0)"), HasSubstr("echo is true together with logprobs"));
  EXPECT_TRUE(Completion(R"("prompt":"p","echo":true)").answer.echo);
}

TEST(ParseRequest, MoreIdsThanTheLimitAreNotEchoedHoweverTheyAreSplit) {
  const std::string body = R"({"model":"m","prompt":[[1,2],[3,4]],"echo":true})";
  const auto refused = ParseRequest(Endpoint::kCompletions, body, {.max_echo_ids = 3});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("echo is true with 4 token ids in all answers, wants at most 3"));
  EXPECT_TRUE(ParseRequest(Endpoint::kCompletions, body, {.max_echo_ids = 4}).ok());
}

TEST(ParseRequest, WhatIsEchoedCountsOnceForEachAnswer) {
  const auto refusal = [](const std::string& prompt) {
    const std::string body = absl::StrCat(R"({"model":"m","prompt":)", prompt, R"(,"n":128,"echo":true})");
    return std::string(ParseRequest(Endpoint::kCompletions, body).status().message());
  };
  EXPECT_EQ(refusal(absl::StrCat("\"", std::string((512 << 10) + 1, 'x'), "\"")),
            "echo is true with 67108992 bytes in all answers, wants at most 67108864: send fewer, or leave it out");
  EXPECT_EQ(refusal(absl::StrCat("\"", std::string(512 << 10, 'x'), "\"")), "");
  std::string ids = "[1";
  for (int i = 0; i < 8192; ++i) ids += ",1";
  EXPECT_THAT(refusal(ids + "]"), HasSubstr("1048704 token ids in all answers, wants at most 1048576"));
}

TEST(ParseRequest, ToolsAndFormatsOtherThanTextAreRefusedByName) {
  EXPECT_EQ(RefusedField(R"("tools":[{"type":"function"}])"),
            "tools: tools is a list of 1, wants to be left out: calling tools is not supported");
  EXPECT_THAT(RefusedField(R"("tools":{})"), HasSubstr("tools: tools is an object"));
  EXPECT_EQ(RefusedField(R"("tool_choice":"required")"),
            "tool_choice: tool_choice is \"required\", wants \"none\" or \"auto\": calling tools is not supported");
  EXPECT_THAT(RefusedField(R"("tool_choice":{"type":"function"})"), HasSubstr("tool_choice is an object"));
  EXPECT_EQ(RefusedField(R"("response_format":{"type":"json_object"})"),
            "response_format.type: response_format.type is \"json_object\", wants \"text\": other formats are not "
            "supported");
  EXPECT_THAT(RefusedField(R"("response_format":"json")"), HasSubstr("wants a JSON object"));
  EXPECT_THAT(RefusedField(R"("functions":[{"name":"f"}])"),
              HasSubstr("functions is a list of 1, wants to be left out"));
  EXPECT_THAT(RefusedField(R"("function_call":{"name":"f"})"), HasSubstr("function_call is an object"));
  EXPECT_EQ(RefusedField(R"("guided_choice":["a"])"),
            "guided_choice: guided_choice is a list of 1, wants to be left out: a form cannot be imposed on answers");
  EXPECT_THAT(RefusedField(R"("structured_outputs":{})"), HasSubstr("structured_outputs is an object"));
  EXPECT_THAT(RefusedField(R"("json_schema":{})"), HasSubstr("json_schema is an object"));
  EXPECT_EQ(RefusedField(R"("regex":"[0-9]")"),
            "regex: regex is \"[0-9]\", wants to be left out: a form cannot be imposed on answers");
  EXPECT_THAT(RefusedField(R"("ebnf":"root ::= [0-9]")"),
              HasSubstr("ebnf is \"root ::= [0-9]\", wants to be left out"));
  EXPECT_EQ(RefusedField(R"("stop_regex":"[.]")"),
            "stop_regex: stop_regex is \"[.]\", wants to be left out: a pattern cannot end answers, texts in stop can");
  EXPECT_EQ(RefusedField(R"("continue_final_message":true)"),
            "continue_final_message: continue_final_message is true, wants false: the last message of a chat cannot be "
            "continued");
  for (const char* field :
       {R"("tools":[])", R"("tools":null)", R"("tool_choice":"auto","tools":[])",
        R"("functions":[],"function_call":"auto")", R"("tool_choice":"none")", R"("response_format":{"type":"text"})",
        R"("continue_final_message":false)", R"("regex":null,"ebnf":null,"stop_regex":[])"}) {
    EXPECT_EQ(Chat(absl::StrCat(kHello, ",", field)).prompts.size(), 1u) << field;
  }
  EXPECT_THAT(Refusal(Endpoint::kChat, absl::StrCat(R"({"model":"m",)", kHello, R"(,"tools":[{}]})")),
              HasSubstr("calling tools is not supported"));
}

TEST(ParseRequest, WhatWouldChangeTheAnswerIsRefusedUnlessItAsksForNothing) {
  EXPECT_EQ(RefusedField(R"("logit_bias":{"1":-100})"),
            "logit_bias: logit_bias is an object, wants to be left out: which tokens may be chosen cannot be told");
  EXPECT_EQ(RefusedField(R"("suffix":"}")"),
            "suffix: suffix is \"}\", wants \"\": what follows an answer cannot be told");
  EXPECT_THAT(RefusedField(R"("min_tokens":5)"), HasSubstr("min_tokens is 5, wants 0, or ignore_eos as well"));
  EXPECT_THAT(RefusedField(R"("skip_special_tokens":false)"), HasSubstr("skip_special_tokens is false, wants true"));
  for (const char* field :
       {R"("bad_words":["a"])", R"("allowed_token_ids":[1])", R"("include_stop_str_in_output":true)",
        R"("truncate_prompt_tokens":8)", R"("prompt_logprobs":0)", R"("use_beam_search":true)",
        R"("length_penalty":0.5)", R"("typical_p":0.9)", R"("mirostat":2)", R"("dynatemp_range":0.5)",
        R"("dry_multiplier":0.8)", R"("xtc_probability":0.1)", R"("top_n_sigma":1.5)", R"("samplers":[])",
        R"("modalities":["text","audio"])", R"("audio":{"voice":"x"})", R"("web_search_options":{})",
        R"("chat_template":"{{ messages }}")", R"("documents":[{"text":"x"}])"}) {
    EXPECT_THAT(RefusedField(field), HasSubstr(", wants ")) << field;
  }
  for (const char* field : {R"("echo":true)", R"("add_special_tokens":true)"}) {
    EXPECT_EQ(Completion(absl::StrCat(R"("prompt":"p",)", field)).prompts.size(), 1u) << field;
    EXPECT_THAT(Refusal(Endpoint::kChat, absl::StrCat(R"({"model":"m",)", kHello, ",", field, "}")),
                HasSubstr("is true, wants false"))
        << field;
  }
  for (const char* fields :
       {R"("logit_bias":{},"bad_words":[],"allowed_token_ids":null,"suffix":"")", R"("min_tokens":0)",
        R"("min_tokens":5,"ignore_eos":true)", R"("include_stop_str_in_output":false,"skip_special_tokens":true)",
        R"("use_beam_search":false,"length_penalty":1.0,"typical_p":1.0,"mirostat":0,"dynatemp_range":0.0)",
        R"("dry_multiplier":0.0,"xtc_probability":0,"top_n_sigma":-1,"modalities":["text"],"documents":[])",
        R"("top_n_sigma":0.0,"samplers":null,"audio":null,"web_search_options":null,"chat_template":null)"}) {
    EXPECT_EQ(Completion(absl::StrCat(R"("prompt":"p",)", fields)).prompts.size(), 1u) << fields;
  }
}

TEST(ParseRequest, CallsOfToolsInAHistoryAreRefusedByName) {
  const auto history = [](const std::string& more) {
    return R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":null)" + more +
           "}]}";
  };
  EXPECT_THAT(Refusal(Endpoint::kChat, history(R"(,"tool_calls":[{"id":"1"}])")),
              HasSubstr("messages[1].tool_calls is a list of 1, wants to be left out"));
  EXPECT_THAT(Refusal(Endpoint::kChat, history(R"(,"function_call":{"name":"f"})")),
              HasSubstr("messages[1].function_call is an object, wants to be left out"));
  for (const char* more : {"", R"(,"tool_calls":[],"function_call":null)"}) {
    EXPECT_TRUE(ParseRequest(Endpoint::kChat, history(more)).ok()) << more;
  }
}

TEST(ParseRequest, ATenMegabytePromptIsTaken) {
  EXPECT_EQ(
      std::get<std::string>(Completion("\"prompt\":\"" + std::string(10 << 20, 'p') + "\"").prompts[0].input).size(),
      size_t{10} << 20);
}

TEST(ReadHeaders, EachPromptHasTheTraceAndAnIdOfItsOwn) {
  HttpRequest http;
  http.headers = {{"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}};
  auto parsed = Completion(R"("prompt":["a","b"])");
  ReadHeaders(http, "id", parsed);
  EXPECT_EQ(parsed.prompts[0].traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  EXPECT_EQ(parsed.prompts[0].request_id, "id-0");
  EXPECT_EQ(parsed.prompts[1].request_id, "id-1");
  http.headers["traceparent"] = "00-\t-01";
  parsed = Completion(R"("prompt":"a")");
  ReadHeaders(http, "id", parsed);
  EXPECT_EQ(parsed.prompts[0].traceparent, "");
  EXPECT_EQ(parsed.prompts[0].request_id, "id");
}

TEST(ParseRequest, AConversationsIdIsAHintAndRefusesNothing) {
  Completion(absl::StrCat(R"("prompt":"a","conversation_id":")", std::string(257, 'c'), "\""));
}

TEST(ReadHeaders, ANumberedIdStaysWithinTheLimitOfAnIdThatIsItself) {
  auto parsed = Completion(R"("prompt":["a","b","c","d","e","f","g","h","i","j","k"])");
  for (const size_t length : {253, 254, 255, 256}) {
    const std::string id(length, 'r');
    ReadHeaders({}, id, parsed);
    EXPECT_EQ(parsed.prompts[9].request_id, id.substr(0, 254) + "-9");
    EXPECT_EQ(parsed.prompts[10].request_id, id.substr(0, 253) + "-10");
  }
  ReadHeaders({}, std::string(257, 'r'), parsed);
  EXPECT_GT(parsed.prompts[0].request_id.size(), 256u) << "the relay is to refuse it, as it does for one prompt";
}

}  // namespace
}  // namespace swiftcache::gateway::openai
