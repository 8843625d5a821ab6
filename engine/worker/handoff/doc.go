// Package handoff carries a prompt's state from the worker that computed it to
// the worker that decodes from it, over QUIC (ALPN "weir-kv/2").
//
// The prefill worker keeps the state in a Store under a 128-bit random handle,
// bound to the operation, until it has been delivered or its lease ends. The
// decode worker dials it, both ends showing certificates with the role worker,
// opens one stream per hand-off, and reads:
//
//	-> uint16 length, JSON {"handle","operation","have"}
//	<- uint32 length, JSON Header
//	<- tokens (int32), logits (float32), parts of KV     all little-endian
//	-> one byte, the receipt; then the prefill worker forgets the state
//
// A running request moves in stages (Llumnix, OSDI'24): its worker sends the KV
// ahead while it goes on, part by part, and stops it only for the last one.
// Stages go the other way round, from who has the state:
//
//	-> uint16 length, JSON {"handle","operation","stage":true}
//	-> uint32 length, JSON Header without logits; tokens; the next part of KV
//	<- one byte, the receipt
//
// Who has been sent some parts says in "have" how many tokens they hold, and
// reads what is after them; everybody else reads the whole.
//
// It checks lengths against its own model before it allocates, and fingerprint,
// checksum and tokens before the bytes go anywhere near the runner. A read that
// fails leaves the state for another worker to read; while one reads, who comes
// later takes its place.
package handoff
