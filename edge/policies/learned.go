package policies

import (
	"errors"

	"github.com/weirhq/weir/cascade/control"
)

// of returns the class in force for a cell: its own, or the general one. A node
// has one tenant.
func (s *Set) of(cell string) *Class {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var general *Class
	for at, st := range s.rows {
		switch at.class {
		case cell:
			return st.class
		case "":
			general = st.class
		}
	}
	return general
}

// Label tells the cell's controller of the late label of a kept answer: loss is
// 1 when it was wrong and right at the cloud.
func (s *Set) Label(cell string, loss, propensity float64) {
	if c := s.of(cell); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ctl.Label(loss, propensity)
	}
}

// Drifted tells the cell's controller of a drift alarm, or of its end: meanwhile
// a risk threshold stays where its bound is.
func (s *Set) Drifted(cell string, alarmed bool) {
	c := s.of(cell)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if alarmed {
		c.ctl.Drifted()
	} else {
		c.ctl.Settled()
	}
}

// Bound bounds the risk of every class that has a risk target, on the labelled
// answers of its cells.
func (s *Set) Bound(cells map[string][]control.RiskItem) {
	pooled := map[*Class][]control.RiskItem{}
	for cell, items := range cells {
		if c := s.of(cell); c != nil && c.settings.Risk != nil {
			pooled[c] = append(pooled[c], items...)
		}
	}
	for c, items := range pooled {
		s.bound(c, items)
	}
}

func (s *Set) bound(c *Class, items []control.RiskItem) {
	if len(items) < control.MinRiskItems {
		return
	}
	c.mu.Lock()
	b, err := c.ctl.Calibrate(items)
	c.mu.Unlock()
	risk := c.settings.Risk
	switch {
	case errors.Is(err, control.ErrInfeasible):
		s.log.Warn("risk target cannot be kept on the labels seen", "policy", c.name, "err", err)
	case err != nil:
		s.log.Error("risk is not bounded", "policy", c.name, "err", err)
	case b.Escalate > risk.MaxRate:
		s.log.Warn("risk target takes more escalations than its max_rate", "policy", c.name, "alpha", risk.Alpha, "rate", b.Escalate, "max_rate", risk.MaxRate)
	}
}
