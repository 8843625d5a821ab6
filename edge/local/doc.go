// Package local is the OpenAI-compatible API of an edge node and the life of a
// request on it: check the caller, let cascade.Before plan, generate on the
// node's own worker, let cascade.After judge, and answer or let the request
// over to the cloud. Policies stand in package cascade; here is the acting.
//
// The edge's answer is held whole until it is judged. A streaming client gets
// comments as heartbeats meanwhile, and then the answer of one tier only.
package local
