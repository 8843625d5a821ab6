// Package pool holds what a gateway knows of each instance: what its health
// probe last said, with its age, and the ledger of legs that this gateway has
// under way there. A leg counts from the moment an instance is selected, so
// that requests arriving together do not all see the same idle instance.
//
// One mutex guards the whole state; probes write it, selections read it.
package pool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/cloud/route"
)

// Member is one instance as the operator configured it.
type Member struct {
	Name string
	URL  string // base without /v1, e.g. "http://127.0.0.1:7424"
	// Role is used where the instance does not report its own; "" is mixed.
	Role route.Role
	// Model is the pool that the instance belongs to.
	Model string
	// Served is the model's name at the instance, when it is not Model.
	Served string
}

// Options say how a Pool watches its members. Zero values get defaults.
type Options struct {
	Members  []Member
	Client   *http.Client  // for probes; must trust the members' certificates
	Interval time.Duration // between probes of one member; 1 s
	Timeout  time.Duration // of one probe; 2 s
	Log      *slog.Logger
}

// Defaults of Options.
const (
	DefaultInterval = time.Second
	DefaultTimeout  = 2 * time.Second
)

// missesAllowed is how many probes in a row may time out before an instance is
// taken out: on a busy machine one late answer says little. A refused
// connection or an error status counts at once.
const missesAllowed = 3

// Pool is safe for concurrent use.
type Pool struct {
	opts  Options
	start time.Time

	mu    sync.Mutex
	inst  map[string]*instance
	views []route.InstanceView // scratch of Select, sorted by ID
}

type instance struct {
	Member
	opaque  string
	kick    chan struct{} // asks for a probe now
	view    route.InstanceView
	misses  int
	problem string
	maxSeqs int
}

// New checks the members and returns a Pool in which none is ready yet: Run
// probes them.
func New(o Options) (*Pool, error) {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	p := &Pool{opts: o, start: time.Now(), inst: map[string]*instance{}}
	for _, m := range o.Members {
		if err := p.add(m); err != nil {
			return nil, err
		}
	}
	p.views = make([]route.InstanceView, 0, len(p.inst))
	return p, nil
}

func (p *Pool) add(m Member) error {
	if m.Role == "" {
		m.Role = route.Mixed
	}
	switch {
	case m.Name == "":
		return fmt.Errorf("instance %q has no name", m.URL)
	case p.inst[m.Name] != nil:
		return fmt.Errorf("instance %s is configured twice", m.Name)
	case !strings.HasPrefix(m.URL, "http://") && !strings.HasPrefix(m.URL, "https://"):
		return fmt.Errorf("instance %s: url %q must start with http:// or https://", m.Name, m.URL)
	case !m.Role.Valid():
		return fmt.Errorf("instance %s: role %q: use mixed, prefill or decode", m.Name, m.Role)
	case m.Model == "":
		return fmt.Errorf("instance %s has no model", m.Name)
	}
	m.URL = strings.TrimRight(m.URL, "/")
	if m.Served == "" {
		m.Served = m.Model
	}
	p.inst[m.Name] = &instance{Member: m, opaque: opaque(m.Name), kick: make(chan struct{}, 1), problem: "not probed yet",
		view: route.InstanceView{ID: m.Name, Role: m.Role, Model: m.Model}}
	return nil
}

// opaque is a name that shows applications which answers came from the same
// instance without telling its host.
func opaque(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "i-" + hex.EncodeToString(sum[:4])
}

// Run probes every member until ctx ends.
func (p *Pool) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, in := range p.inst {
		wg.Go(func() { p.watch(ctx, in) })
	}
	wg.Wait()
}

// Status is one instance as people see it.
type Status struct {
	Name     string         `json:"name"`
	Opaque   string         `json:"opaque"` // as in X-Weir-Instance
	Model    string         `json:"model"`
	Role     route.Role     `json:"role"`
	Epoch    string         `json:"epoch,omitempty"`
	Ready    bool           `json:"ready"`
	Problem  string         `json:"problem,omitempty"` // why it is not ready
	Context  int            `json:"context,omitempty"` // tokens
	MaxSeqs  int            `json:"max_seqs,omitempty"`
	AgeMs    int64          `json:"age_ms"` // since it was last heard of; -1 is never
	InFlight route.InFlight `json:"in_flight"`
}

// Status lists the instances by name.
func (p *Pool) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Status, 0, len(p.inst))
	for _, in := range p.inst {
		s := Status{Name: in.Name, Opaque: in.opaque, Model: in.Model, Role: in.view.Role, Epoch: in.view.Epoch,
			Ready: in.view.Ready, Problem: in.problem, Context: in.view.Context, MaxSeqs: in.maxSeqs,
			AgeMs: -1, InFlight: in.view.InFlight}
		if in.view.SeenAt > 0 {
			s.AgeMs = (time.Since(p.start) - in.view.SeenAt).Milliseconds()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Serves reports whether a member, ready or not, belongs to the model's pool,
// and the largest context that a ready one reports (0: unknown).
func (p *Pool) Serves(model string) (known bool, contextTokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, in := range p.inst {
		if in.Model == model {
			known = true
			contextTokens = max(contextTokens, in.view.Context)
		}
	}
	return known, contextTokens
}

// observeLocked fills the scratch views, sorted by ID.
func (p *Pool) observeLocked() []route.InstanceView {
	p.views = p.views[:0]
	for _, in := range p.inst {
		p.views = append(p.views, in.view)
	}
	slices.SortFunc(p.views, func(a, b route.InstanceView) int { return strings.Compare(a.ID, b.ID) })
	return p.views
}
