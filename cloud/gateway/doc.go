// Package gateway is the cloud's data plane: the OpenAI-compatible API for
// applications and the same API for devices that escalate, with admission,
// prefill and decode legs, streaming and settlement.
//
// The life of a request is one file per step:
//
//	exchange.go   a request from its arrival to its one end
//	identify.go   whose it is: an API key, or a device's certificate
//	parse.go      what it asks
//	idempotent.go the same request twice runs once
//	admit.go      the only way to a model
//	attempt.go    instances are chosen, legs run, failures tried elsewhere
//	prefill.go    the prefill leg
//	decode.go     the decode leg
//	relay.go      a stream on its way to the client, read by package chunk
//	settle.go     one ledger row per attempt, one log line per request
//
// An exchange is owned by its handler's goroutine.
package gateway
