// Package local is the OpenAI-compatible API of an edge node and the life of a
// request on it: check the caller, let cascade.Before plan, generate on the
// node's own worker, let cascade.After judge, and answer or let the request
// over to the cloud. Policies stand in package cascade; here is the acting.
//
// The beginning of a streamed answer is held back until it is judged, anything
// else until it is whole; package cascade/stream decides, flight acts. A
// streaming client gets comments as heartbeats meanwhile.
package local
