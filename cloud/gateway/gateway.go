package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/ballot"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

// Directory holds the newest snapshot of tenants and keys.
type Directory interface {
	// Index is nil until the first snapshot was loaded.
	Index() *tenants.Index
}

// Recorder keeps ledger rows. It must not block on the database.
type Recorder interface {
	// Begin writes down that an attempt is about to run. rec is the row that is
	// true if this process is never heard of again. An error says that the
	// attempt cannot be accounted for and must not run.
	Begin(rec *tenants.UsageRecord) (Entry, error)
}

// Entry is an attempt that was begun.
type Entry interface {
	// Settle writes down how the attempt ended. It is called exactly once; an
	// error says that the row may be lost.
	Settle(rec *tenants.UsageRecord) error
}

// AtEnd is a Recorder that hears only of settlements.
type AtEnd func(tenants.UsageRecord)

// Begin implements Recorder.
func (f AtEnd) Begin(*tenants.UsageRecord) (Entry, error) { return f, nil }

// Settle implements Entry.
func (f AtEnd) Settle(rec *tenants.UsageRecord) error {
	f(*rec)
	return nil
}

// Model is a name that applications may ask for.
type Model struct {
	// Pool is the model of the instances that serve it.
	Pool string
	// Named says that asking for it is the client's own choice of a model;
	// it is false for "auto".
	Named bool
	// Cascade, when set, asks a small pool first; Pool then answers what that
	// one is not trusted with.
	Cascade *cascading.Entry
}

// Timeouts of the data plane. Zero values get defaults.
type Timeouts struct {
	FirstByte time.Duration // from an attempt's start to its first token; 30 s
	Stall     time.Duration // between two events of a stream; 10 s
	Retry     time.Duration // after which a request without news is not tried again; 60 s
	Answer    time.Duration // for an answer that is not streamed; 10 min
	Write     time.Duration // for a client that does not read; 30 s
	Body      time.Duration // for a client to send its request's body; 60 s
	Lease     time.Duration // for which an unread hand-off is taken to be there; 25 s, instances keep it for 30 s
	Votes     time.Duration // for a model's word on its own answer; 2 s
}

// Options are what a Gateway needs.
type Options struct {
	Directory Directory
	Admission Admission // nil admits everything
	Recorder  Recorder
	Pool      *pool.Pool
	Policy    route.Policy // nil is route.Measured
	Models    map[string]Model
	Client    *http.Client // to the instances; without a timeout of its own
	Telemetry *telemetry.Telemetry
	Log       *slog.Logger
	Usage     UsageReader
	Claims    Claims        // nil: an Idempotency-Key holds on this gateway alone
	Feedback  Feedback      // nil: no scores are taken
	Billing   price.Billing // nil is price.DefaultBilling

	Timeouts    Timeouts
	MaxAttempts int // per request; 3
	MaxInFlight int // requests at once on all listeners; 1024
	ExplainSize int // requests that the explain endpoint remembers; 4096

	// Node and Epoch name this process in ledger rows.
	Node, Epoch string
	// Mount adds the control plane's routes. None of them reaches a model.
	Mount func(gin.IRouter)
	// AltSvc, when set, announces HTTP/3 on answers over TCP.
	AltSvc func(http.Header) error
}

// Gateway serves applications and devices. Make it with New.
type Gateway struct {
	opts     Options
	models   []string // sorted
	explain  *explanations
	replays  replays
	answers  answers
	ways     ballot.Ways
	budgets  sync.Map        // pool -> *pace.Allowance of retries
	equals   map[string]bool // pools that are equals of others
	scores   sync.Map        // tenant -> *pace.Allowance of scores
	meter    *meter
	inFlight atomic.Int64
	ledger   atomic.Pointer[priced]
	engine   *gin.Engine
}

// priced is an index with the price book made from it.
type priced struct {
	index *tenants.Index
	book  *price.Book
}

// New checks o and returns a Gateway.
func New(o Options) (*Gateway, error) {
	if o.Directory == nil || o.Recorder == nil || o.Pool == nil || o.Client == nil || o.Telemetry == nil || o.Log == nil {
		return nil, errors.New("gateway: Directory, Recorder, Pool, Client, Telemetry and Log are needed")
	}
	o.setDefaults()
	g := &Gateway{opts: o, explain: newExplanations(o.ExplainSize), equals: equalsOf(o.Models), ways: ballot.Ways{Patience: o.Timeouts.Votes}}
	for name, m := range o.Models {
		if known, _ := o.Pool.Serves(m.Pool); !known {
			return nil, fmt.Errorf("model %s: no instance belongs to pool %q", name, m.Pool)
		}
		if m.Cascade != nil {
			for _, p := range m.Cascade.Pools() {
				if known, _ := o.Pool.Serves(p); !known {
					return nil, fmt.Errorf("model %s: no instance belongs to pool %q", name, p)
				}
			}
		}
		g.models = append(g.models, name)
	}
	slices.Sort(g.models)
	var err error
	if g.meter, err = newMeter(o.Telemetry, g, o.Pool); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g.engine = g.routes()
	return g, nil
}

func (o *Options) setDefaults() {
	setDefault(&o.Timeouts.FirstByte, 30*time.Second)
	setDefault(&o.Timeouts.Stall, 10*time.Second)
	setDefault(&o.Timeouts.Retry, time.Minute)
	setDefault(&o.Timeouts.Answer, 10*time.Minute)
	setDefault(&o.Timeouts.Write, 30*time.Second)
	setDefault(&o.Timeouts.Body, time.Minute)
	setDefault(&o.Timeouts.Lease, 25*time.Second)
	setDefault(&o.MaxAttempts, 3)
	setDefault(&o.MaxInFlight, 1024)
	setDefault(&o.ExplainSize, 4096)
	if o.Policy == nil {
		o.Policy = route.Measured{}
	}
	if o.Admission == nil {
		o.Admission = AdmitAll{}
	}
	if o.Billing == nil {
		o.Billing = price.DefaultBilling()
	}
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// ServeHTTP implements http.Handler: the same tree for every listener.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.engine.ServeHTTP(w, r) }

// tenancy returns the newest index with its price book, or nil.
func (g *Gateway) tenancy() *priced {
	x := g.opts.Directory.Index()
	if x == nil {
		return nil
	}
	if p := g.ledger.Load(); p != nil && p.index == x {
		return p
	}
	book, err := price.NewBook(x.Snapshot().Prices)
	if err != nil {
		g.opts.Log.Error("price book refused, requests are not charged", "error", err)
		book, _ = price.NewBook(nil) // an empty book has nothing to refuse
	}
	p := &priced{x, book}
	g.ledger.Store(p)
	return p
}

// InFlight is how many requests are under way.
func (g *Gateway) InFlight() int64 { return g.inFlight.Load() }
