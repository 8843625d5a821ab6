package policies

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/tenants"
)

// Set is safe for concurrent use. The zero value is not usable: see New.
type Set struct {
	fallback cascade.Policy
	cal      cascade.Calibration
	log      *slog.Logger

	follows atomic.Pointer[tenants.Snapshot]

	mu     sync.RWMutex
	rows   map[row]*state
	listed map[row]bool            // rows of the snapshot that is followed; nil: all
	saved  map[string]policy.Saved // of rows not seen yet or any more; see Restore and Follow
}

// row names a policy of the snapshot; an empty class is the general policy.
type row struct{ tenant, class string }

// name is the row in a file: no id of a tenant has a slash.
func (r row) name() string { return r.tenant + "/" + r.class }

// state is what is known of one row: the policy last seen and what came of it.
type state struct {
	seen    *tenants.Policy
	class   *Class
	refusal error // why seen is not in force; nil when it is
}

// New returns an empty set. fallback judges where settings name no threshold;
// cal, which may be nil, is where controllers start.
func New(fallback cascade.Policy, cal *cascade.Calibration, log *slog.Logger) *Set {
	s := &Set{fallback: fallback, log: log, rows: map[row]*state{}}
	if cal != nil {
		s.cal = *cal
	}
	return s
}

// Default is the node's own policy.
func (s *Set) Default() cascade.Policy { return s.fallback }

// For returns what is in force for a policy of the snapshot, and nil for nil.
// The same settings keep their controller over snapshots and classes.
func (s *Set) For(p *tenants.Policy) *Class {
	if p == nil {
		return nil
	}
	at := row{p.TenantID, p.Class}
	s.mu.RLock()
	st := s.rows[at]
	if st != nil && (st.seen == p || same(st.seen, p)) {
		defer s.mu.RUnlock()
		return st.class
	}
	s.mu.RUnlock()
	return s.change(at, p)
}

func same(a, b *tenants.Policy) bool {
	return a.Mode == b.Mode && bytes.Equal(a.Spec, b.Spec) &&
		(a.Threshold == nil) == (b.Threshold == nil) && (a.Threshold == nil || *a.Threshold == *b.Threshold)
}

func (s *Set) change(at row, p *tenants.Policy) *Class {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.rows[at]
	if old != nil && same(old.seen, p) { // another request was faster
		return old.class
	}
	next := &state{seen: p}
	settings, err := policy.Join(p.Spec, p.Mode, p.Threshold)
	switch {
	case err == nil:
		next.class = s.newClass(settings)
		s.carry(at, old, next.class)
		s.log.Info("cascade policy in force", "tenant", p.TenantID, "class", p.Class, "policy", settings.Name, "version", settings.Version)
	case old != nil:
		next.class, next.refusal = old.class.guarded(strictly(p)), err
		s.log.Warn("cascade policy refused, the last good one stays in force", "tenant", p.TenantID, "class", p.Class, "err", err)
	default:
		next.class, next.refusal = s.newClass(strictly(p)), err
		s.log.Warn("cascade policy refused, the node's own is in force", "tenant", p.TenantID, "class", p.Class, "err", err)
	}
	if s.lists(at) { // else a request from before the last snapshot
		s.rows[at] = next
	}
	return next.class
}

// carry hands what the row's controller knows to the next one.
func (s *Set) carry(at row, old *state, next *Class) {
	if old != nil {
		next.restore(old.class.saved())
	} else if saved, ok := s.saved[at.name()]; ok {
		next.restore(saved)
	}
}

// strictly reads, of a refused policy, what may bind a request to this node.
// What cannot be read binds it.
func strictly(p *tenants.Policy) policy.Settings {
	set := policy.Settings{}
	said := jsonscan.Members(p.Spec)
	modes := []any{p.Mode}
	for said.Next() { // a key may be there twice, or in other capitals: each binds
		var v any
		if json.Unmarshal(said.Val, &v) != nil {
			set.Privacy = cascade.PrivacyLocalOnly
		}
		switch key := said.Name(); {
		case strings.EqualFold(key, "mode"):
			modes = append(modes, v)
		case strings.EqualFold(key, "privacy") && v != nil && v != "" && v != string(cascade.PrivacyAny):
			set.Privacy = cascade.PrivacyLocalOnly
		}
	}
	if len(p.Spec) > 0 && !said.OK() && !jsonscan.IsNull(p.Spec) {
		set.Privacy = cascade.PrivacyLocalOnly
	}
	for _, mode := range modes {
		if mode == nil || mode == "" {
			continue
		}
		text, _ := mode.(string) // anything else is no mode
		m, err := cascade.ParseMode(text)
		if err != nil || text == "" || set.Mode == cascade.ModeEdgeOnly {
			m = cascade.ModeEdgeOnly
		}
		set.Mode = m
	}
	return set
}
