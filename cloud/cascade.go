package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/bundled"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway"
)

// validate refuses entries that are neither a pool nor a cascade of two.
func (m Model) validate() error {
	switch {
	case len(m.Cascade) == 0 && (m.Policy != nil || m.Calibration != ""):
		return errors.New("policy and calibration belong to a cascade: name its two pools")
	case len(m.Cascade) == 0:
		return nil
	case m.Pool != "":
		return errors.New("pool and cascade both say who answers: keep one")
	case len(m.Cascade) != 2 || m.Cascade[0] == m.Cascade[1]:
		return errors.New("cascade: want two pools, the small one first")
	}
	_, err := m.entry()
	return err
}

// pools are those that the entry names.
func (m Model) pools() []string {
	if len(m.Cascade) > 0 {
		return m.Cascade
	}
	return []string{m.Pool}
}

// large is the pool that answers in the end.
func (m Model) large() string {
	pools := m.pools()
	return pools[len(pools)-1]
}

// entry makes the entry's cascade, nil where it is none.
func (m Model) entry() (*cascading.Entry, error) {
	if len(m.Cascade) == 0 {
		return nil, nil
	}
	set, err := m.settings()
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	cal, err := m.calibration()
	if err != nil {
		return nil, fmt.Errorf("calibration: %w", err)
	}
	return cascading.New(cascading.Options{Pools: m.Cascade, Policy: set, Calibration: cal, Continues: m.Continues})
}

func (m Model) settings() (policy.Settings, error) {
	if m.Policy == nil {
		return policy.Settings{}, nil
	}
	raw, err := json.Marshal(m.Policy)
	if err != nil {
		return policy.Settings{}, err
	}
	return policy.Parse(raw)
}

func (m Model) calibration() (cascade.Calibration, error) {
	if m.Calibration == "" {
		return bundled.HubEdge()
	}
	raw, err := os.ReadFile(m.Calibration)
	if err != nil {
		return cascade.Calibration{}, err
	}
	return cascade.ParseCalibration(raw)
}

// gatewayModels are the names with their cascades.
func (c *Config) gatewayModels() (map[string]gateway.Model, error) {
	all := c.models()
	for name, m := range c.Models {
		entry, err := m.entry()
		if err != nil {
			return nil, fmt.Errorf("models.%s: %w", name, err)
		}
		g := all[name]
		g.Cascade = entry
		all[name] = g
	}
	return all, nil
}
