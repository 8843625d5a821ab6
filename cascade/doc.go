// Package cascade decides which tier answers a request: the edge node's small
// model, or the cloud. It is pure: no I/O, no clock, no global random source.
// Every decision is a function of its arguments, so that the edge agent, the
// cloud gateway, the simulator and the offline replayer run the same code.
//
// A request passes three points:
//
//   - [Before] looks at the request and at what is known of the node and says
//     who is asked, in which order, and whether the edge's answer is judged.
//   - during generation an [Accumulator] turns each token's log-probability
//     into [Signals], and a Window may change its mind before anything is shown.
//   - [After] judges the finished edge answer: a [Calibration] turns its
//     signals into the probability that the answer is right, and a [Policy]
//     keeps it or lets it over to the cloud.
//
// Hard limits (privacy, capability, link, deadline, cost, budget) are checked
// at each point and never traded for quality. A local-only request never has
// the cloud in its plan, whatever else is configured.
package cascade
