package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/bundled"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway"
)

// Pools are those of one place of a cascade: one, or in the last place equals.
type Pools []string

// UnmarshalYAML reads a name, or {any: [name, name]}.
func (p *Pools) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*p = Pools{n.Value}
		return nil
	}
	var equals struct {
		Any []string `yaml:"any"`
	}
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 || n.Content[0].Value != "any" || n.Decode(&equals) != nil {
		return fmt.Errorf("line %d of cascade: want the name of a pool, or {any: [name, name]}, in each place", n.Line)
	}
	if *p = equals.Any; len(*p) < 2 {
		return fmt.Errorf("line %d of cascade: any needs two or more pools to choose among", n.Line)
	}
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (p Pools) MarshalYAML() (any, error) {
	if len(p) == 1 {
		return p[0], nil
	}
	return map[string][]string{"any": p}, nil
}

// places are the pools of a cascade, or of equals alone, in the order in which they
// are asked; none for a plain pool.
func (m Model) places() []Pools {
	if len(m.Any) > 0 {
		return []Pools{m.Any}
	}
	return m.Cascade
}

// judged are the pools whose answers a cascade judges.
func (m Model) judged() (names []string) {
	for _, p := range m.places()[:max(0, len(m.places())-1)] {
		names = append(names, p...)
	}
	return names
}

// equals are the pools of which one answers in the end.
func (m Model) equals() []string {
	if all := m.places(); len(all) > 0 {
		return all[len(all)-1]
	}
	return []string{m.Pool}
}

// pools are those that the entry names.
func (m Model) pools() []string { return slices.Concat(m.judged(), m.equals()) }

// validate refuses entries that are neither a pool, nor equals, nor a cascade.
func (m Model) validate() error {
	switch {
	case m.Context < 0:
		return errors.New("context must not be negative: leave it out where it is not known")
	case len(m.places()) == 0 && (len(m.Policy) > 0 || m.Calibration != "" || len(m.Calibrations) > 0 || len(m.Quality) > 0):
		return errors.New("policy, calibrations and quality belong to a cascade: name its pools")
	case len(m.places()) == 0 && m.Pool == "":
		return errors.New("name who answers: pool, any or cascade")
	case len(m.places()) == 0:
		return nil
	case m.Pool != "" || len(m.Any) > 0 && len(m.Cascade) > 0:
		return errors.New("pool, any and cascade all say who answers: keep one")
	case len(m.Any) == 1:
		return errors.New("any needs two or more pools to choose among: name one as pool")
	case len(m.judged()) == 0 && (m.Calibration != "" || len(m.Calibrations) > 0 || len(m.Quality) > 0):
		return errors.New("calibrations and quality are of pools whose answers are judged: there is none")
	case m.Calibration != "" && m.Calibrations[m.pools()[0]] != "":
		return fmt.Errorf("calibration and calibrations.%s are the same: keep one", m.pools()[0])
	}
	for name := range m.Calibrations {
		if !slices.Contains(m.judged(), name) {
			return fmt.Errorf("calibrations.%s: the cascade judges no answers of such a pool", name)
		}
	}
	for name := range m.Quality {
		if !slices.Contains(m.pools(), name) {
			return fmt.Errorf("quality.%s: the cascade has no such pool", name)
		}
	}
	_, err := m.entry()
	return err
}

// entry makes the entry's cascade, nil where it is none.
func (m Model) entry() (*cascading.Entry, error) {
	if len(m.places()) == 0 {
		return nil, nil
	}
	if len(m.judged()) > len(m.places())-1 {
		return nil, errors.New("any stands in the last place only: the answers of the others are judged by one model's calibration")
	}
	if err := cascading.CheckCount(len(m.pools()), len(m.equals())); err != nil {
		return nil, err
	}
	set, err := m.settings()
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	o := cascading.Options{Equals: len(m.equals()), Policy: set, Continues: m.Continues}
	for i, pool := range m.pools() {
		t := cascading.Tier{Pool: pool, Quality: m.Quality[pool]}
		if i < len(m.judged()) {
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
	for _, key := range slices.Sorted(maps.Keys(m.Policy)) {
		if _, err := json.Marshal(m.Policy[key]); err != nil { // YAML knows more than JSON
			return policy.Settings{}, fmt.Errorf("%s: %v cannot be used", key, m.Policy[key])
		}
	}
	raw, err := json.Marshal(m.Policy)
	if err != nil {
		return policy.Settings{}, err
	}
	return policy.Parse(raw)
}

// calibration is that of a tier's pool.
func (m Model) calibration(tier int) (cascade.Calibration, error) {
	path := m.Calibrations[m.pools()[tier]]
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
