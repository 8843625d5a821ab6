package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/bundled"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway"
)

// validate refuses entries that are neither a pool nor a cascade.
func (m Model) validate() error {
	switch {
	case m.Context < 0:
		return errors.New("context must not be negative: leave it out where it is not known")
	case len(m.Cascade) == 0 && (m.Policy != nil || m.Calibration != "" || m.Calibrations != nil || m.Quality != nil):
		return errors.New("policy, calibrations and quality belong to a cascade: name its pools")
	case len(m.Cascade) == 0:
		return nil
	case m.Pool != "":
		return errors.New("pool and cascade both say who answers: keep one")
	case m.Calibration != "" && m.Calibrations[m.Cascade[0]] != "":
		return fmt.Errorf("calibration and calibrations.%s are the same: keep one", m.Cascade[0])
	}
	for name := range m.Calibrations {
		if !slices.Contains(m.Cascade[:len(m.Cascade)-1], name) {
			return fmt.Errorf("calibrations.%s: the cascade judges no answers of such a pool", name)
		}
	}
	for name := range m.Quality {
		if !slices.Contains(m.Cascade, name) {
			return fmt.Errorf("quality.%s: the cascade has no such pool", name)
		}
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
	if err := cascading.CheckCount(len(m.Cascade)); err != nil {
		return nil, err
	}
	set, err := m.settings()
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	o := cascading.Options{Policy: set, Continues: m.Continues}
	for i, pool := range m.Cascade {
		t := cascading.Tier{Pool: pool, Quality: m.Quality[pool]}
		if i < len(m.Cascade)-1 {
			if t.Calibration, err = m.calibration(i); err != nil {
				return nil, fmt.Errorf("calibration of %s: %w", pool, err)
			}
		}
		o.Tiers = append(o.Tiers, t)
	}
	return cascading.New(o)
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

// calibration is that of a tier's pool.
func (m Model) calibration(tier int) (cascade.Calibration, error) {
	path := m.Calibrations[m.Cascade[tier]]
	if path == "" && tier == 0 {
		path = m.Calibration
	}
	switch {
	case path == "" && tier == 0:
		return bundled.HubEdge()
	case path == "":
		return cascade.Calibration{}, errors.New("it is missing: run 'weir cascade calibrate' and name its file under calibrations")
	}
	raw, err := os.ReadFile(path)
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
