// Package api is a worker's HTTP surface: OpenAI's chat and text completions
// with vLLM's prefill/decode fields, models, health and metrics, and the calls
// of a gateway under /instance/v1.
//
// # Completions
//
// Members of a request:
//
//	used        model, messages, prompt, max_tokens, max_completion_tokens,
//	            temperature, top_p, top_k, min_p, seed, stop, logprobs,
//	            top_logprobs, stream, stream_options, min_tokens, ignore_eos,
//	            continue_final_message, add_generation_prompt,
//	            kv_transfer_params, priority, return_token_ids, weir_resume
//	ignored     user, metadata, store, service_tier, safety_identifier,
//	            prompt_cache_key, prompt_cache_retention, prompt_cache_options,
//	            parallel_tool_calls, reasoning_effort, verbosity, weir,
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
//
// # What a gateway adds to a completion
//
// The listener lets nobody but a gateway in (by certificate, or on loopback), so
// these need no further proof:
//
//	X-Weir-Operation     operation id: binds hand-offs, names the request in state
//	X-Weir-Attempt       attempt id, for logs
//	X-Weir-Cache-Salt    tenant's salt of the prefix cache; absent is ""
//	X-Weir-Slo-Ttft-Ms   first token wanted within so many ms of arrival here;
//	                     orders requests of one priority; absent is 10000
//	X-Weir-Slo-Tpot-Ms   time per output token wanted in ms: bounds how much of
//	                     others' prompts goes between two tokens; absent is 50
//	priority             vLLM's: an integer, the lower the earlier; default 0
//	return_token_ids     vLLM's: true adds "token_ids":[...] to each choice of an
//	                     answer or chunk: the tokens behind its text
//	kv_transfer_params   a leg of prefill/decode: see package handoff
//	weir_resume          {"text":"...","tokens":[1,2]}: continue an answer of which
//	                     text has been shown and tokens (of return_token_ids) have
//	                     been generated. Without tokens the text is tokenised. The
//	                     answer begins after text: no role chunk, nothing repeated.
//	                     A seeded answer goes on with the same random sequence.
//	                     max_tokens and min_tokens are for this leg: the gateway
//	                     takes off what was generated. usage.prompt_tokens leaves
//	                     the resumed tokens out, completion_tokens counts this leg.
//
// The answer to a decode leg has X-Weir-Kv: pulled when it starts from the
// hand-off, which is no more then; without it the prompt was computed here.
//
// usage.prompt_tokens_details.cached_tokens are prompt tokens whose KV this
// worker had in its prefix cache. A decode leg that pulled its KV says 0: the
// prefill leg's usage has the number.
//
// # Calls under /instance/v1
//
// Answers that are errors have OpenAI bodies.
//
//	GET  /instance/v1/info     identity, sizes, address for hand-offs, as /health
//	GET  /instance/v1/state    stream of state.Message, one JSON object a line
//	                           (application/x-ndjson): on change at most each
//	                           50 ms, else each second. The first has "full":true
//	                           and all prefix keys in keys_added; later ones bring
//	                           the keys added and evicted since the one before. A
//	                           later message with "full":true replaces all keys
//	                           (this reader was too slow). seq counts the messages
//	                           of one stream from 1.
//	POST /instance/v1/role     {"role":"prefill"} -> {"role":"prefill"}; what runs
//	                           goes on
//	POST /instance/v1/drain    {"draining":true} -> {"draining":true,"requests":3};
//	                           refuses new requests (503 worker_draining) and ends
//	                           those that run; false takes it back. Empty body is
//	                           true.
//	POST /instance/v1/lease    {"handle":"32 hex","operation":"...",
//	                           "action":"renew"} -> {"expires":1790000000.5}:
//	                           renews a hand-off for another 30 s, or with action
//	                           release forgets it; 404 handoff_gone: it has been
//	                           read, or never was this operation's
//	POST /instance/v1/migrate  {"operation":"...","to":{"name":"w2","host":"...",
//	                           "port":7425}} -> {"operation":"...","to":{...},
//	                           "stages":3}: copies the request's KV to the worker
//	                           at host:port (its address for hand-offs) while it
//	                           goes on, and answers when all but the last tokens
//	                           are there; then the request's stream ends at its
//	                           next token with a migration event. Without "to" it
//	                           does so at once. 404 operation_unknown, 409
//	                           operation_waiting while it has no token yet, 409
//	                           migration_aborted: it goes on here
//
// A migration event is the last of its stream, without [DONE]:
//
//	data: {"weir_migrated":{"to":"w2","kv_transfer_params":{...},"weir_resume":{"text":"...","tokens":[...]}},"usage":{...}}
//
// Its usage is of this leg, with the tokens whose text the next one shows first.
// The gateway sends the request to another worker, to the one named by "to" where
// it can because that has the KV but for the last tokens, with both members as they are
// and max_tokens and min_tokens less the tokens in weir_resume that it had not
// resumed before. An answer that is not streamed has finish_reason "migrated", the
// text so far and the same member. No prompt token is computed again where the
// destination can pull; where it cannot, it computes prompt and tokens itself.
package api
