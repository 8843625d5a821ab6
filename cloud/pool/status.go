package pool

import (
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/state"
)

// Status is one instance as people see it.
type Status struct {
	Name     string         `json:"name"`
	Opaque   string         `json:"opaque" doc:"as in X-Weir-Instance"`
	Model    string         `json:"model"`
	Served   string         `json:"-"` // Model's name at the instance
	Role     route.Role     `json:"role"`
	Epoch    string         `json:"epoch,omitempty"`
	Ready    bool           `json:"ready"`
	Suspect  bool           `json:"suspect" doc:"gets work only where no other instance can do it"`
	Share    float64        `json:"share" doc:"part of a fair load, below 1 while it comes back"`
	Problem  string         `json:"problem,omitempty" doc:"why it is not ready, or suspect"`
	Context  int            `json:"context,omitempty" doc:"tokens"`
	MaxSeqs  int            `json:"max_seqs,omitempty"`
	AgeMs    int64          `json:"age_ms" doc:"since it was last heard of; -1 is never"`
	InFlight route.InFlight `json:"in_flight" doc:"this gateway's own"`
	Breaker  string         `json:"breaker" enum:"closed,open,half_open"`
	Untried  int64          `json:"untried_ms,omitempty" doc:"half_open for so long because no request has come that would try it"`
	Failures int            `json:"failures" doc:"of requests, counted by the breaker since this gateway's start"`
	Last     *Failure       `json:"last_failure,omitempty"`
	Keys     int            `json:"prefix_keys" doc:"of 64 bytes of prompt each, reported or guessed"`
	Report   *Report        `json:"report,omitempty" doc:"absent for an engine without a stream of state"`
	URL      string         `json:"url"`
	From     string         `json:"from" enum:"static,joined" doc:"the configuration, or its own registration"`
	Leaving  bool           `json:"leaving,omitempty" doc:"no member any more: it has streams to end"`
	Failing  string         `json:"failing,omitempty" doc:"why it degrades while it still answers"`
	Weights  string         `json:"weights,omitempty" doc:"SHA-256 of its model's file; absent for other engines"`
	Warning  string         `json:"warning,omitempty" doc:"what is wrong with its pool although it serves"`
	Moves    Moves          `json:"moves"`
	// HeartbeatMs is for instances that joined.
	HeartbeatMs *int64 `json:"heartbeat_age_ms,omitempty" doc:"since the registry last heard of an instance that joined"`
}

// Values of Status.From.
const (
	FromStatic = "static"
	FromJoined = "joined"
)

// Failure is the newest failure of a request at an instance.
type Failure struct {
	Message string `json:"message"`
	AgeMs   int64  `json:"age_ms"`
}

// Report is what an instance last said of itself.
type Report struct {
	AgeMs         int64            `json:"age_ms"`
	Running       int              `json:"running"`
	Waiting       int              `json:"waiting"`
	PrefillTokens int              `json:"prefill_tokens_waiting"`
	DecodeContext int              `json:"decode_ctx_tokens"`
	KVTokens      int              `json:"kv_tokens"`
	KVFree        int              `json:"kv_tokens_free" doc:"the prefix cache's own count as free"`
	HitRate       float64          `json:"hit_rate" doc:"of recent lookups in the prefix cache, 0 to 1"`
	StepMs        float64          `json:"step_ms"`
	Transfers     []state.Transfer `json:"transfers,omitempty" doc:"hand-offs pulled, by peer"`
}

// Status lists the instances by name.
func (p *Pool) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	out := make([]Status, 0, len(p.inst)+len(p.leaving))
	for i, v := range p.observeLocked() {
		s := p.inst[i].status(now)
		s.Ready, s.Suspect, s.Share = v.Ready, v.Suspect, v.Weight
		if p.split[s.Model] {
			s.Warning = splitWarning
		}
		out = append(out, s)
	}
	for _, in := range p.leaving {
		s := in.status(now)
		s.Leaving, s.Problem = true, "has left the pool"
		out = append(out, s)
	}
	return out
}

// status is the instance without what depends on the others.
func (in *instance) status(now time.Duration) Status {
	s := Status{Name: in.Name, Opaque: in.opaque, Model: in.Model, Served: in.Served, Role: in.role, Epoch: in.epoch, Problem: in.vitals.problem,
		Context: in.context, MaxSeqs: in.maxSeqs, AgeMs: -1, InFlight: in.ledger.total, Breaker: in.vitals.breakerState(now), Untried: in.vitals.untried(now).Milliseconds(),
		Failures: in.vitals.failures, Keys: len(in.index.keys), Report: in.known.report(now), URL: in.URL, From: FromStatic,
		Failing: in.vitals.failing, Weights: clip(in.weights), Moves: in.moves}
	if in.vitals.last != "" {
		s.Last = &Failure{in.vitals.last, age(in.vitals.lastAt, now)}
	}
	if in.seen > 0 {
		s.AgeMs = age(in.seen, now)
	}
	if in.joined != nil {
		ms := age(in.joined.heard, now)
		s.From, s.HeartbeatMs = FromJoined, &ms
	}
	return s
}

func (k *known) report(now time.Duration) *Report {
	if k.seq == 0 {
		return nil
	}
	l := &k.load
	return &Report{AgeMs: age(k.at, now), Running: l.Running, Waiting: l.Waiting, PrefillTokens: l.PrefillTokens,
		DecodeContext: l.DecodeContext, KVTokens: l.KVTokens, KVFree: l.KVFree, HitRate: k.hitRate, StepMs: k.stepMs, Transfers: k.moved}
}

func age(then, now time.Duration) int64 { return (now - then).Milliseconds() }
