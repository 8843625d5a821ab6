package fake

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/sse"
)

// resume is the member weir_resume.
type resume struct {
	Text   string `json:"text"`
	Tokens []int  `json:"tokens"`
}

// resumed is how many tokens of the answer another engine has made.
func (q *request) resumed() int {
	switch {
	case q.Resume == nil:
		return 0
	case len(q.Resume.Tokens) > 0:
		return len(q.Resume.Tokens)
	}
	return len(strings.Fields(q.Resume.Text))
}

// skipResumed leaves out what another engine has made, which must be what this
// one would have made.
func (c *run) skipResumed() error {
	c.from = c.q.resumed()
	if c.from == 0 {
		return nil
	}
	if c.from > len(c.tokens) || strings.Join(c.tokens[:c.from], "") != c.q.Resume.Text {
		return &badRequest{"weir_resume", "the text is not the beginning of this answer"}
	}
	c.tokens = c.tokens[c.from:]
	return nil
}

// flights are the requests under way.
type flights struct {
	mu   sync.Mutex
	list []*flight
}

type flight struct {
	operation string
	prompt    int
	generated atomic.Int64
	moves     atomic.Bool // it is to end at its next token, for another engine
	to        string      // which, where the order names one; set before moves
}

func (f *flights) add(operation string, prompt int) *flight {
	one := &flight{operation: operation, prompt: prompt}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, one)
	return one
}

func (f *flights) remove(one *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = slices.DeleteFunc(f.list, func(other *flight) bool { return other == one })
}

func (f *flights) requests() []state.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]state.Request, len(f.list))
	for i, one := range f.list {
		out[i] = state.Request{Operation: one.operation, Phase: state.Prefill, PromptTokens: one.prompt, Generated: int(one.generated.Load())}
		if out[i].Generated > 0 {
			out[i].Phase = state.Decode
		}
	}
	return out
}

// Operation is the operation id of the oldest request under way; "" is none.
func (e *Engine) Operation() string {
	if q := e.flights.requests(); len(q) > 0 {
		return q[0].Operation
	}
	return ""
}

// Leaves reports whether a request has been told to end for another engine.
func (e *Engine) Leaves(operation string) bool {
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	return slices.ContainsFunc(e.flights.list, func(f *flight) bool { return f.operation == operation && f.moves.Load() })
}

// word is what the engine says of its health.
func (e *Engine) word() string {
	if e.drains.Load() {
		return "draining"
	}
	return "ok"
}

func (e *Engine) health(w http.ResponseWriter, _ *http.Request) {
	if !e.o.Weir {
		return // a vLLM has no body here
	}
	status := http.StatusOK
	if e.drains.Load() {
		status = http.StatusServiceUnavailable
	}
	var print any
	if e.o.Weights != "" {
		print = object{"weights": e.o.Weights, "runner": "fake", "kv": "fake"}
	}
	writeJSON(w, status, object{"status": e.word(), "fingerprint": print, "name": e.o.Name, "epoch": e.o.EngineID, "role": *e.role.Load(), "model": e.o.Model,
		"context": e.o.Context, "max_seqs": e.o.MaxSeqs})
}

// drain takes {"draining":true}, setRole {"role":"prefill"}.
func (e *Engine) drain(w http.ResponseWriter, r *http.Request) {
	q := struct {
		Draining bool `json:"draining"`
		Requests int  `json:"requests"`
	}{Draining: true}
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&q) != nil {
		writeError(w, http.StatusBadRequest, "want {\"draining\":true}", "")
		return
	}
	e.drains.Store(q.Draining)
	q.Requests = e.InFlight()
	writeJSON(w, http.StatusOK, q)
}

func (e *Engine) setRole(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Role string `json:"role"`
	}
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&q) != nil || q.Role == "" {
		writeError(w, http.StatusBadRequest, "want {\"role\":\"mixed\"}", "role")
		return
	}
	e.role.Store(&q.Role)
	writeJSON(w, http.StatusOK, q)
}

// maxOrder bounds the body of an order, in bytes.
const maxOrder = 4096

// stateEvery is the time between two messages of state.
const stateEvery = 50 * time.Millisecond

// state sends messages until the reader leaves.
func (e *Engine) state(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	rc := http.NewResponseController(w)
	tick := time.NewTicker(stateEvery)
	defer tick.Stop()
	for seq := uint64(1); ; seq++ {
		m := state.Message{Full: seq == 1, Seq: seq, At: time.Now(), Name: e.o.Name, Epoch: e.o.EngineID, Role: *e.role.Load(), Health: e.word(),
			Failing: *e.failing.Load(), Model: e.o.Model, Context: e.o.Context, MaxSeqs: e.o.MaxSeqs, Requests: e.flights.requests(),
			Cost: e.cost(),
			Load: state.Load{Steps: e.steps.Load(), StepMS: millis(e.itl()), Running: int(e.running.Load()), Waiting: int(e.waiting.Load()), KVBlockSize: e.o.BlockSize,
				KVBlocksTotal: e.o.Blocks, KVBlocksUsed: e.Held()}}
		if m.Cost != nil {
			m.ModelMS = millis(e.modelled())
		}
		for _, q := range m.Requests {
			if q.Generated == 0 {
				m.PrefillTokensWaiting += q.PromptTokens
			} else {
				m.DecodeCtxTokens += q.PromptTokens + q.Generated
			}
		}
		if json.NewEncoder(w).Encode(m) != nil || rc.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// cost is what the Options make of a step; nil where a batch costs nothing.
func (e *Engine) cost() *cost.Model {
	if e.o.PerSequence == 0 {
		return nil
	}
	return &cost.Model{Pieces: []cost.Piece{{Fixed: millis(e.o.ITL), PerDecode: millis(e.o.PerSequence), PerPrefill: millis(e.o.PerPromptToken)}}}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// migrate marks a request to be given away.
func (e *Engine) migrate(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Operation string `json:"operation"`
		To        struct {
			Name string `json:"name"`
		} `json:"to"`
	}
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&q) != nil {
		writeError(w, http.StatusBadRequest, "want {\"operation\":\"...\"}", "")
		return
	}
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	for _, one := range e.flights.list {
		if one.operation == q.Operation && one.generated.Load() > 0 {
			if !one.moves.Load() {
				one.to = q.To.Name
			}
			one.moves.Store(true)
			writeJSON(w, http.StatusOK, q)
			return
		}
	}
	writeError(w, http.StatusNotFound, "no such request decodes here", "operation")
}

// moveAway ends a stream that another engine continues with these blocks.
func (c *run) moveAway(w *sse.Writer, host string, ids []int) error {
	ended := resume{Tokens: make([]int, c.from+c.sent)}
	for i := range ended.Tokens {
		ended.Tokens[i] = i
	}
	if c.q.Resume != nil {
		ended.Text = c.q.Resume.Text
	}
	ended.Text += strings.Join(c.tokens[:c.sent], "")
	body := c.base("chat.completion.chunk")
	body["usage"] = c.usage()
	body["weir_migrated"] = object{"to": c.flight.to, "kv_transfer_params": c.offer(host, ids), "weir_resume": ended}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return w.Data(data)
}
