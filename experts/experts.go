// Package experts is the command line of mixture-of-experts balancing: plan a
// placement from loads, look at one, replay windows through the controller,
// and watch an SGLang fleet. The parts are in its folders: gate, load, plan,
// rebalance, format, watch.
package experts

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/internal/cli"
)

// Command is "weir experts". More are commands that need what this package does
// not import: engines, and the cloud's admin API.
func Command(more ...cli.Command) cli.Command {
	return cli.Command{Name: "experts", Short: "balance the experts of a mixture-of-experts model", Sub: append([]cli.Command{
		planCommand(), showCommand(), replayCommand(), watchCommand(), combinedCommand(),
	}, more...)}
}

// fleetFlags describe devices on the command line.
type fleetFlags struct {
	devices, spare int
	slots, speed   string
}

// fleet makes the fleet for E experts: equal devices, or a list of slots.
func (f fleetFlags) fleet(experts int) (plan.Fleet, error) {
	var fleet plan.Fleet
	var err error
	switch {
	case f.slots != "":
		if f.devices != 0 || f.spare != 0 {
			return fleet, cli.Usagef("--slots stands instead of --devices and --spare")
		}
		if fleet.Slots, err = numbers(f.slots, strconv.Atoi); err != nil {
			return fleet, cli.Usagef("--slots: %s", err)
		}
	case f.devices == 0:
		return fleet, cli.Usagef("--devices or --slots is missing")
	default:
		if fleet, err = plan.Even(experts, f.devices, f.spare); err != nil {
			return fleet, err
		}
	}
	if f.speed != "" {
		parse := func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
		if fleet.Speed, err = numbers(f.speed, parse); err != nil {
			return fleet, cli.Usagef("--speed: %s", err)
		}
	}
	return fleet, fleet.Validate(experts)
}

// numbers parses a comma-separated list.
func numbers[T any](s string, parse func(string) (T, error)) ([]T, error) {
	var out []T
	for _, field := range strings.Split(s, ",") {
		v, err := parse(strings.TrimSpace(field))
		if err != nil {
			return nil, fmt.Errorf("%.40q is not a number", field)
		}
		out = append(out, v)
	}
	return out, nil
}
