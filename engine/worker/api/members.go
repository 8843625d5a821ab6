package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/weirhq/weir/internal/openai"
)

// used are the members that internal/openai or this package reads.
var used = []string{
	"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
	"seed", "stop", "logprobs", "top_logprobs", "stream", "stream_options", "min_tokens", "ignore_eos",
	"continue_final_message", "add_generation_prompt", "kv_transfer_params",
	"priority", "return_token_ids", "weir_resume",
}

// ignored are members that do not change an answer.
var ignored = []string{
	"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
	"prompt_cache_options", "parallel_tool_calls", "reasoning_effort", "verbosity", "weir",
	"request_id", "session_id", "cache_salt", "include_reasoning",
}

// neutral are members that are accepted with one of these values only.
var neutral = map[string][]string{
	"n":                             {"1"},
	"best_of":                       {"1"},
	"frequency_penalty":             {"0"},
	"presence_penalty":              {"0"},
	"repetition_penalty":            {"1"},
	"logit_bias":                    {"{}"},
	"echo":                          {"false"},
	"suffix":                        {`""`},
	"tools":                         {"[]"},
	"functions":                     {"[]"},
	"tool_choice":                   {`"none"`, `"auto"`},
	"function_call":                 {`"none"`, `"auto"`},
	"response_format":               {`{"type":"text"}`},
	"modalities":                    {`["text"]`},
	"stop_token_ids":                {"[]"},
	"bad_words":                     {"[]"},
	"allowed_token_ids":             {},
	"prompt_logprobs":               {},
	"logprob_token_ids":             {"[]"},
	"truncate_prompt_tokens":        {},
	"chat_template_kwargs":          {"{}"},
	"structured_outputs":            {},
	"audio":                         {},
	"prediction":                    {},
	"moderation":                    {},
	"web_search_options":            {},
	"return_tokens_as_token_ids":    {"false"},
	"thinking_token_budget":         {},
	"skip_special_tokens":           {"true"},
	"spaces_between_special_tokens": {"true", "false"},
	"use_beam_search":               {"false"},
	"length_penalty":                {"1"},
}

// checkMembers refuses what the worker cannot do. It looks at the members in
// alphabetical order, so that the answer does not change between two tries.
func checkMembers(b openai.Body) error {
	names := make([]string, 0, len(b))
	for name := range b {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if slices.Contains(used, name) || slices.Contains(ignored, name) {
			continue
		}
		values, known := neutral[name]
		switch {
		case !known:
			return openai.BadRequest(clip(name), openai.CodeUnknownMember, "%s is not a member that this model server knows", clip(name))
		case !isNeutral(b[name], values):
			return openai.BadRequest(name, openai.CodeUnsupported, "%s is not supported%s", name, except(values))
		}
	}
	return nil
}

func except(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return " with another value than " + strings.Join(values, " or ")
}

func isNeutral(raw json.RawMessage, values []string) bool {
	var c bytes.Buffer
	if json.Compact(&c, raw) != nil {
		return false
	}
	s := c.String()
	if number := strings.TrimSuffix(s, ".0"); slices.Contains(values, number) {
		return true
	}
	return s == "null" || slices.Contains(values, s)
}

// clip bounds a client's text that an error repeats.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
