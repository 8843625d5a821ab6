// Package handoff carries a prompt's state from the worker that computed it to
// the worker that decodes from it, over QUIC (ALPN "weir-kv/1").
//
// The prefill worker keeps the state in a Store under a 128-bit random handle,
// bound to the operation, until it has been delivered or its lease ends. The
// decode worker dials it, both ends showing certificates with the role worker,
// opens one stream per hand-off, and reads:
//
//	-> uint16 length, JSON {"handle","operation"}
//	<- uint32 length, JSON Header
//	<- tokens (int32), logits (float32), KV bytes     all little-endian
//	-> one byte, the receipt; then the prefill worker forgets the state
//
// It checks lengths against its own model before it allocates, and fingerprint,
// checksum and tokens before the bytes go anywhere near the runner. A read that
// fails leaves the state for another worker to read; while one reads, who comes
// later takes its place.
package handoff
