package local

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/foresight"
	"github.com/weirhq/weir/edge/policies"
	"github.com/weirhq/weir/edge/roster"
	"github.com/weirhq/weir/edge/supervise"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/ballot"
	"github.com/weirhq/weir/internal/pace"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// Cloud is the way to the cloud.
type Cloud interface {
	Do(context.Context, uplink.Request) (*uplink.Response, error)
	Stats() uplink.Stats
}

// Generator answers with the local model.
type Generator interface {
	Generate(context.Context, upstream.Ask, upstream.Watch) (*upstream.Draft, error)
	// Whole gives an answer that comes at once.
	Whole(context.Context, upstream.Ask) ([]byte, error)
}

// WorkerState is what is known of the local model's server.
type WorkerState interface {
	Health() (supervise.Health, bool)
	Suspect()
}

// Roster gives the tenant's snapshot in use, or nil.
type Roster interface{ View() *roster.View }

// Recorder takes one usage row for each local attempt.
type Recorder interface{ Record(tenants.UsageRecord) }

// Options configure a Server. Zero values take the defaults named.
type Options struct {
	Model       string   // name of the edge's model: "hub-edge"
	CloudModels []string // names that mean the cloud; the first is what "auto" is let over to
	TenantID    string
	DeviceID    string

	// AllowAnonymous lets callers without a key use the device's own account.
	// The caller makes sure that the listener is loopback.
	AllowAnonymous bool
	AllowedHosts   []string // beside loopback names, without port
	AllowedOrigins []string // "https://app.example"

	Calibration *cascade.Calibration // nil: nothing can be judged
	Policy      cascade.Policy       // where the tenant's own names no threshold

	BodyTime    time.Duration // a client may take to send its body: 60 s
	WriteTime   time.Duration // a client may take to read one event: 30 s
	FirstByte   time.Duration // 30 s
	Stall       time.Duration // 10 s
	VoteTime    time.Duration // for the model's word on its own answer: 2 s
	Heartbeat   time.Duration // between comments while an answer is held: 2 s
	MaxInflight int           // requests at once: 256
	MaxLocal    int           // local generations beyond which the edge counts as busy: 32

	Cloud     Cloud
	Generator Generator
	Worker    WorkerState
	Roster    Roster
	Recorder  Recorder
	Decisions Decisions            // nil: no log of them is kept
	Learner   Learner              // nil: Calibration holds for good
	Foresight *foresight.Foresight // nil: made here, and forgotten at the end
	Rules     *policies.Set        // controllers of the tenant's policies; nil: made here
	Telemetry *telemetry.Telemetry
	Log       *slog.Logger
	Now       func() time.Time
}

// Server is the local API.
type Server struct {
	opt     Options
	tracer  trace.Tracer
	gate    chan struct{} // one token per request in flight
	local   chan struct{} // one per local generation
	latency *latency
	ring    *ring
	replays replays

	generation *latency // of whole local answers
	voting     *latency // of votes on them
	ways       ballot.Ways
	sessions   sessions
	limits     limits
	outbox     outbox          // of scores
	pace       *pace.Allowance // of scores

	rules   *policies.Set
	metrics *metrics
}

// ModelAuto is the name of the cascade itself.
const ModelAuto = "auto"

// New returns a Server.
func New(opt Options) (*Server, error) {
	if opt.Cloud == nil || opt.Generator == nil || opt.Worker == nil || opt.Roster == nil || opt.Recorder == nil ||
		opt.Telemetry == nil || opt.Log == nil {
		return nil, errors.New("local API: a part is missing")
	}
	if err := opt.Policy.Validate(); err != nil {
		return nil, err
	}
	if opt.Model == "" || len(opt.CloudModels) == 0 {
		return nil, errors.New("local API: the names of the edge's and the cloud's model are needed")
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&opt.BodyTime, time.Minute}, {&opt.WriteTime, 30 * time.Second}, {&opt.FirstByte, 30 * time.Second}, {&opt.Stall, 10 * time.Second}, {&opt.Heartbeat, 2 * time.Second}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	if opt.MaxInflight <= 0 {
		opt.MaxInflight = 256
	}
	if opt.MaxLocal <= 0 {
		opt.MaxLocal = 32
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Rules == nil {
		opt.Rules = policies.New(opt.Policy, opt.Calibration, opt.Log)
	}
	if opt.Foresight == nil {
		var err error
		if opt.Foresight, err = foresight.Open(foresight.Options{Log: opt.Log}); err != nil {
			return nil, err
		}
	}
	if opt.Learner == nil {
		opt.Learner = newFixed(opt.Calibration)
	}
	m, err := newMetrics(opt.Telemetry.Registry, opt.Cloud, opt.Rules)
	if err != nil {
		return nil, err
	}
	return &Server{
		opt: opt, tracer: opt.Telemetry.Tracer, metrics: m,
		gate: make(chan struct{}, opt.MaxInflight), local: make(chan struct{}, 4*opt.MaxLocal),
		outbox: newOutbox(), pace: pace.New(scoresPerSecond, mostScores), latency: newLatency(), generation: newLatency(), voting: newLatency(), ways: ballot.Ways{Patience: opt.VoteTime}, ring: newRing(ringSize), rules: opt.Rules,
	}, nil
}

// Handler returns the API with its guards.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, upstream.Chat) })
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, upstream.Text) })
	mux.HandleFunc("GET /v1/models", s.serveModels)
	mux.HandleFunc("GET /v1/models/{name}", s.serveModel)
	mux.HandleFunc("GET /v1/weir/requests/{id}", s.serveExplain)
	mux.HandleFunc("PUT /v1/weir/requests/{id}/feedback", s.serveFeedback)
	mux.HandleFunc("/", s.serveUnknown)
	return s.guarded(mux)
}
