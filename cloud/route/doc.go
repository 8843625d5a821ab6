// Package route decides which instance or instances take a request: a pure
// function from an Observation to a Decision. It holds no state, reads no
// clock and draws no chance of its own, so the simulator and an offline replay
// run the very code that the gateway runs.
//
// The stages are those of endpoint pickers in the field (llm-d, Llumnix):
// candidates, hard constraints, scores, selection. A constraint is never
// traded for score.
package route
