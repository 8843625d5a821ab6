package policies

import (
	"maps"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/tenants"
)

// Follow tells of the snapshot that a request found, before For. A newer one ends
// the rows that it lacks: labels and metrics are not theirs any more. What their
// controllers know is kept, for the day that they come back.
func (s *Set) Follow(snap *tenants.Snapshot) {
	if s.follows.Load() == snap {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.follows.Load(); last != nil && snap.Version < last.Version {
		return // of a request that began before
	}
	s.follows.Store(snap)
	s.listed = make(map[row]bool, len(snap.Policies))
	for i := range snap.Policies {
		s.listed[row{snap.Policies[i].TenantID, snap.Policies[i].Class}] = true
	}
	saved := make(map[string]policy.Saved, len(s.saved))
	maps.Copy(saved, s.saved)
	for at, st := range s.rows {
		if !s.listed[at] {
			saved[at.name()] = st.class.saved()
			delete(s.rows, at)
		}
	}
	s.saved = saved // Keep may be reading the old one
}

// lists reports whether the snapshot in use has the row.
func (s *Set) lists(at row) bool { return s.listed == nil || s.listed[at] }
