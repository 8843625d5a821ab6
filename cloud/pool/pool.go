// Package pool holds what a gateway knows of each instance. Who is one, the
// operator's list and the cloud's registry say (joined.go). What is known of each
// has four parts with one file each:
//
//	ledger.go   the legs that this gateway has under way there. A leg counts from
//	            the moment an instance is selected, so that requests arriving
//	            together do not all see the same idle instance
//	known.go    what the instance says of itself, message by message, with its age
//	index.go    which prefixes its cache holds: as reported, or as guessed from
//	            this gateway's own dispatches
//	health.go   whether it can be given work: probes, the evidence of requests, a
//	            circuit breaker, slow start
//
// Parts are folds over events and know neither network nor clock; probe.go and
// subscribe.go bring the events. One mutex guards the whole state.
package pool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
)

// Member is one instance as the operator configured it, or as it registered.
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
	Members []Member
	// Pools are names of pools that exist even when they have no member.
	Pools    []string
	Client   *http.Client  // for probes; must trust the members' certificates
	Interval time.Duration // between probes of one member; 1 s
	Timeout  time.Duration // of one probe; 2 s
	// Silence is how long a stream of state may say nothing; 5 s. Workers send a
	// message each second.
	Silence time.Duration
	// Roles lets roles follow the load; nil leaves them as they are. With several
	// gateways it is set on one of them.
	Roles *roles.Params
	// Moves lets streams leave instances that have too much to do or degrade; with
	// nil they leave those that drain only.
	Moves *roles.MoveParams
	// Forget is for how long an instance that joined is believed in although
	// neither the registry nor this gateway hears of it; 60 s.
	Forget   time.Duration
	Registry prometheus.Registerer // of metrics; nil keeps them to the pool
	Log      *slog.Logger
}

// Defaults of Options.
const (
	DefaultInterval = time.Second
	DefaultTimeout  = 2 * time.Second
	DefaultSilence  = 5 * time.Second
	DefaultForget   = time.Minute
)

// Pool is safe for concurrent use.
type Pool struct {
	opts    Options
	now     func() time.Duration // the clock that observations use
	changed chan struct{}        // says that somebody is to be watched

	mu      sync.Mutex
	inst    []*instance               // sorted by name
	leaving []*instance               // members no more, whose legs have not all ended
	views   []route.InstanceView      // scratch of Select, as inst
	traffic map[string]*route.Traffic // by model
	moved   map[string]*history       // streams between two legs, by operation
	split   map[string]bool           // pools that were warned of: their instances have several weights
	meters  meters
}

type instance struct {
	Member
	opaque  string
	kick    chan struct{} // asks for a probe now
	came    chan struct{} // says that a process has come up, or another in its place
	joined  *joined       // nil where the operator listed it
	gone    chan struct{} // closed when nothing is to be known of it any more
	watched bool          // somebody watches it

	role    route.Role // as reported, or the member's
	epoch   string
	context int // tokens; 0 is unknown
	maxSeqs int
	kv      string        // KV format; "" is unknown
	prints  string        // fingerprint, as prefix keys take it
	weights string        // of the fingerprint; "" is unknown
	takes   *destination  // where it takes KV and gives it; nil is nowhere
	kvAddr  string        // the same as host:port
	apart   bool          // gives no KV to others and takes none
	seen    time.Duration // when it was last heard of
	changed time.Duration // when this gateway last ordered another role; 0 is never
	shifted time.Duration // when a stream last moved to it or from it; 0 is never
	moves   Moves
	pace    pace

	vitals vitals
	ledger ledger
	known  known
	index  index
}

// New checks the members and returns a Pool in which none is ready yet: Run
// probes them.
func New(o Options) (*Pool, error) {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&o.Interval, DefaultInterval}, {&o.Timeout, DefaultTimeout}, {&o.Silence, DefaultSilence}, {&o.Forget, DefaultForget}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	start := time.Now()
	p := &Pool{opts: o, now: func() time.Duration { return time.Since(start) }, changed: make(chan struct{}, 1), traffic: map[string]*route.Traffic{},
		moved: map[string]*history{}, split: map[string]bool{}, meters: newMeters()}
	if err := p.meters.register(o.Registry); err != nil {
		return nil, err
	}
	members, err := filled(o.Members)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		p.add(newInstance(m))
	}
	return p, nil
}

// Check refuses members as New does.
func Check(members []Member) error {
	_, err := filled(members)
	return err
}

// filled are the members with what they leave open.
func filled(members []Member) ([]Member, error) {
	out, seen := slices.Clone(members), map[string]bool{}
	for i := range out {
		m := &out[i]
		if err := m.fill(); err != nil {
			return nil, err
		}
		if seen[m.Name] {
			return nil, fmt.Errorf("instance %s is configured twice", m.Name)
		}
		seen[m.Name] = true
	}
	return out, nil
}

// fill checks a member and sets what it leaves open.
func (m *Member) fill() error {
	if m.Role == "" {
		m.Role = route.Mixed
	}
	u, err := url.Parse(m.URL)
	switch {
	case m.Name == "":
		return errors.New("an instance has no name")
	case strings.ContainsFunc(m.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("instance %q: a name is of characters that can be printed", m.Name)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("instance %s: url is not such as http://127.0.0.1:8000", m.Name)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("instance %s: url must be without user, password, query and fragment", m.Name)
	case !m.Role.Valid():
		return fmt.Errorf("instance %s: role %q: use mixed, prefill or decode", m.Name, m.Role)
	case m.Model == "":
		return fmt.Errorf("instance %s has no model", m.Name)
	}
	m.URL = strings.TrimRight(m.URL, "/")
	if strings.HasSuffix(u.Path, "/v1") || strings.HasSuffix(u.Path, "/v1/") {
		return fmt.Errorf("instance %s: url must be without /v1, which is added: %s", m.Name, strings.TrimSuffix(m.URL, "/v1"))
	}
	if m.Served == "" {
		m.Served = m.Model
	}
	return nil
}

func newInstance(m Member) *instance {
	in := &instance{Member: m, opaque: opaque(m.Name), kick: make(chan struct{}, 1), came: make(chan struct{}, 1), gone: make(chan struct{}),
		role: m.Role, vitals: vitals{problem: "not probed yet"}}
	if u, err := url.Parse(m.URL); err == nil { // until it tells
		if port, err := strconv.Atoi(u.Port()); err == nil {
			in.takesKVAt(u.Hostname(), port)
		}
	}
	return in
}

// add keeps inst sorted.
func (p *Pool) add(in *instance) {
	i, _ := slices.BinarySearchFunc(p.inst, in.Name, func(x *instance, name string) int { return strings.Compare(x.Name, name) })
	p.inst = slices.Insert(p.inst, i, in)
}

func (p *Pool) find(name string) *instance {
	for _, in := range p.inst {
		if in.Name == name {
			return in
		}
	}
	return nil
}

// opaque is a name that shows applications which answers came from the same
// instance without telling its host.
func opaque(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "i-" + hex.EncodeToString(sum[:4])
}

// Run watches every member until ctx ends.
func (p *Pool) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.steer(ctx) })
	for {
		for _, in := range p.unwatched() {
			wg.Go(func() { p.watch(ctx, in) })
		}
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
	}
}

// unwatched lists the instances that nobody watches yet, and counts on the
// caller to do so.
func (p *Pool) unwatched() []*instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*instance
	for _, in := range p.inst {
		if !in.watched {
			in.watched = true
			out = append(out, in)
		}
	}
	return out
}

// watch learns of one instance until ctx ends or the instance is gone.
func (p *Pool) watch(ctx context.Context, in *instance) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.probeAll(ctx, in) })
	wg.Go(func() { p.follow(ctx, in) })
	select {
	case <-ctx.Done():
	case <-in.gone:
		cancel()
	}
}

// Serves reports whether the model's pool exists, with or without a member that
// is ready, and the largest context that one of them reports (0: unknown).
func (p *Pool) Serves(model string) (known bool, contextTokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known = slices.Contains(p.opts.Pools, model)
	for _, in := range p.inst {
		if in.Model == model {
			known = true
			contextTokens = max(contextTokens, in.context)
		}
	}
	return known, contextTokens
}

// Slots is how many requests of a model its ready instances decode at a time,
// 0 where one of them does not say.
func (p *Pool) Slots(model string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for i, v := range p.observeLocked() {
		if v.Model != model || v.Role == route.Prefill || !v.Ready {
			continue
		}
		if p.inst[i].maxSeqs == 0 {
			return 0
		}
		n += p.inst[i].maxSeqs
	}
	return n
}

// reborn takes an instance's epoch. A new one is a new process: nothing that
// was known of the old one holds, its breaker's trial neither, and nothing under
// way survives it.
func (in *instance) reborn(epoch string) {
	if epoch == in.epoch {
		return
	}
	in.epoch = epoch
	in.ledger, in.known, in.index, in.pace = ledger{}, known{}, index{}, pace{}
	in.vitals.reborn()
}
