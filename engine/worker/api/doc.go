// Package api is a worker's HTTP surface: OpenAI's chat and text completions
// with vLLM's prefill/decode fields, models, health and metrics.
//
// Members of a request:
//
//	used        model, messages, prompt, max_tokens, max_completion_tokens,
//	            temperature, top_p, top_k, min_p, seed, stop, logprobs,
//	            top_logprobs, stream, stream_options, min_tokens, ignore_eos,
//	            continue_final_message, add_generation_prompt,
//	            kv_transfer_params
//	ignored     user, metadata, store, service_tier, safety_identifier,
//	            prompt_cache_key, prompt_cache_retention, prompt_cache_options,
//	            parallel_tool_calls, reasoning_effort, verbosity, weir, priority,
//	            request_id, session_id, cache_salt, include_reasoning
//	only with a value that changes nothing (as null, 0, [] or {})
//	            n and best_of 1; frequency_penalty and presence_penalty 0;
//	            repetition_penalty 1; logit_bias {}; echo false; suffix "";
//	            tools, functions, bad_words and the like []; tool_choice and
//	            function_call "none" or "auto"; response_format {"type":"text"};
//	            modalities ["text"]; and others in members.go
//	refused     everything else, by a 400 that names the member
//
// max_tokens beyond the context is cut to what the context has room for; a
// prompt that leaves no room is a 400 context_length_exceeded. The end token
// counts as a completion token and has an entry in logprobs ("</s>", no bytes).
package api
