package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/handoff"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/openai"
)

// Identity names a worker process.
type Identity struct {
	Name  string // stable, of the instance
	Epoch string // random per start of the runner: a new one voids all that was known
	Role  string // mixed, prefill or decode, at the start
}

// Model is a loaded model with what serves it.
type Model struct {
	Info        engine.Info
	Tokenizer   Tokenizer
	Pieces      *loop.Pieces
	Loop        *loop.Loop
	Board       *state.Board
	Metrics     *metrics.Set
	PrefixCache bool
	Cost        *cost.Model // nil: nobody has measured this machine
	// KV is nil where the worker has no certificate: then it offers and pulls no
	// hand-offs.
	KV *KV

	users sync.WaitGroup // requests that tokenise
}

// KV is the worker's end of prefill/decode hand-offs.
type KV struct {
	Endpoint *handoff.Endpoint
	Store    *handoff.Store
	Host     string // under which other workers reach the endpoint
	Port     int
}

// Server is a worker's HTTP handler. It answers from the start and generates
// once it has a model.
type Server struct {
	id      Identity
	log     *slog.Logger
	tracer  trace.Tracer
	created time.Time
	// bodyTimeout is how long a client may take to send a request's body.
	bodyTimeout time.Duration
	model       atomic.Pointer[Model]
	epoch, role atomic.Pointer[string] // the role is what a gateway routes by
	failing     atomic.Pointer[string]
	drained     atomic.Bool   // a gateway said so
	stopping    atomic.Bool   // the process ends
	stopped     chan struct{} // closed when streams of state have to end
	mux         *http.ServeMux

	mu    sync.Mutex
	calls map[string]*call // by operation

	moving chan struct{} // a slot for each request that moves in stages
}

// New returns a Server without a model.
func New(id Identity, log *slog.Logger, tracer trace.Tracer) *Server {
	s := &Server{id: id, log: log, tracer: tracer, created: time.Now(), bodyTimeout: time.Minute, mux: http.NewServeMux(),
		stopped: make(chan struct{}), calls: map[string]*call{}, moving: make(chan struct{}, maxMoving)}
	s.epoch.Store(&id.Epoch)
	s.role.Store(&id.Role)
	s.failing.Store(new(string))
	s.mux.HandleFunc("POST /v1/chat/completions", s.generate(true))
	s.mux.HandleFunc("POST /v1/completions", s.generate(false))
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.HandleFunc("GET /instance/v1/info", s.health)
	s.mux.HandleFunc("GET /instance/v1/state", s.state)
	s.mux.HandleFunc("POST /instance/v1/role", s.setRole)
	s.mux.HandleFunc("POST /instance/v1/drain", s.setDraining)
	s.mux.HandleFunc("POST /instance/v1/lease", s.lease)
	s.mux.HandleFunc("POST /instance/v1/migrate", s.migrate)
	s.mux.HandleFunc("GET /metrics", s.metrics)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		s.mux.HandleFunc(path, wrongMethod)
	}
	s.mux.HandleFunc("/", notFound)
	return s
}

// Handle adds a path that another part of the worker serves.
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// Ready makes the server generate with m.
func (s *Server) Ready(m *Model) { s.model.Store(m) }

// Lost takes the model away and waits until no request uses it. Until the next
// Ready the server is loading, under a new epoch. Streams of state end.
func (s *Server) Lost(epoch string) {
	s.epoch.Store(&epoch)
	s.mu.Lock()
	m := s.model.Swap(nil)
	s.mu.Unlock()
	if m != nil {
		m.users.Wait()
	}
}

// use keeps the model's runner alive until release.
func (s *Server) use() (m *Model, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, err = s.ready(); err != nil {
		return nil, nil, err
	}
	m.users.Add(1)
	return m, m.users.Done, nil
}

// Drain makes the server refuse new requests for good; those that run go on.
func (s *Server) Drain() {
	s.stopping.Store(true)
	s.touch()
}

// Failing makes the worker say that it expects to fail, and why; "" takes that
// back. It serves on.
func (s *Server) Failing(why string) {
	was := *s.failing.Swap(&why)
	switch {
	case was == why:
		return
	case why == "":
		s.log.Info("worker does not expect to fail any more", "was", was)
	default:
		s.log.Warn("worker about to fail", "why", why)
	}
	s.touch()
}

// Stop ends the streams of state, which would keep an http.Server's Shutdown
// waiting. Call it once.
func (s *Server) Stop() { close(s.stopped) }

func (s *Server) draining() bool { return s.stopping.Load() || s.drained.Load() }

// InFlight is how many requests the loop has.
func (s *Server) InFlight() int {
	if m := s.model.Load(); m != nil {
		return m.Board.InFlight()
	}
	return 0
}

// touch shows readers of state that something other than load has changed.
func (s *Server) touch() {
	if m := s.model.Load(); m != nil {
		m.Board.Touch()
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	openai.BoundBody(w, r, s.bodyTimeout)
	s.mux.ServeHTTP(w, r)
}

func wrongMethod(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	(&openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.TypeInvalidRequest, Code: "method_not_allowed",
		Message: "use POST", NoRetry: true}).Write(w, nil)
}

func notFound(w http.ResponseWriter, r *http.Request) {
	(&openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "not_found",
		Message: clip(r.Method+" "+r.URL.Path) + " does not exist here", NoRetry: true}).Write(w, nil)
}

// ready returns the model, or the error for a worker that cannot generate now.
func (s *Server) ready() (*Model, error) {
	m := s.model.Load()
	switch {
	case s.draining():
		return nil, openai.Unavailable("worker_draining", time.Second, "this worker is shutting down")
	case m == nil:
		return nil, openai.Unavailable("worker_loading", time.Second, "this worker is loading its model")
	}
	return m, nil
}

// loaded returns the model, draining or not.
func (s *Server) loaded() (*Model, *openai.Error) {
	if m := s.model.Load(); m != nil {
		return m, nil
	}
	return nil, openai.Unavailable("worker_loading", time.Second, "this worker is loading its model")
}

// status is the body of /health and of /instance/v1/info.
type status struct {
	Status      string              `json:"status"` // ok, loading or draining
	Failing     string              `json:"failing,omitempty"`
	Name        string              `json:"name"`
	Epoch       string              `json:"epoch"`
	Role        string              `json:"role"`
	Model       string              `json:"model,omitempty"`
	Fingerprint *engine.Fingerprint `json:"fingerprint,omitempty"`
	Context     int                 `json:"context,omitempty"`  // tokens
	MaxSeqs     int                 `json:"max_seqs,omitempty"` // requests at a time
	KVTokens    int                 `json:"kv_tokens,omitempty"`
	Handoff     bool                `json:"handoff"` // it gives KV to other workers and takes theirs
	KV          *kvAddress          `json:"kv,omitempty"`
}

type kvAddress struct {
	Host string `json:"host"`
	Port int    `json:"port"`
	ALPN string `json:"alpn"`
}

func (s *Server) status() (status, int) {
	st := status{Status: "ok", Name: s.id.Name, Epoch: *s.epoch.Load(), Role: *s.role.Load(), Failing: *s.failing.Load()}
	code := http.StatusOK
	if m := s.model.Load(); m != nil {
		st.Model, st.Fingerprint = m.Info.Name, &m.Info.Fingerprint
		st.Context, st.MaxSeqs, st.KVTokens = m.Info.Context, m.Info.MaxSeqs, m.Info.KVTokens
		if m.KV != nil {
			st.Handoff, st.KV = true, &kvAddress{Host: m.KV.Host, Port: m.KV.Port, ALPN: handoff.ALPN}
		}
	} else {
		st.Status, code = "loading", http.StatusServiceUnavailable
	}
	if s.draining() {
		st.Status, code = "draining", http.StatusServiceUnavailable
	}
	return st, code
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	st, code := s.status()
	writeJSON(w, code, st)
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	m, err := s.ready()
	if err != nil {
		openai.AsError(err).Write(w, nil)
		return
	}
	writeJSON(w, http.StatusOK, openai.ModelList{Object: openai.ObjectList, Data: []openai.Model{{
		ID: m.Info.Name, Object: openai.ObjectModel, Created: s.created.Unix(), OwnedBy: "weir", MaxModelLen: m.Info.Context}}})
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	m, err := s.loaded()
	if err != nil {
		err.Write(w, nil)
		return
	}
	m.Metrics.Handler().ServeHTTP(w, r)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}
