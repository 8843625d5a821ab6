package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
)

// mover puts a placement in force by restarting replicas with a new file.
type mover struct {
	o       Options
	clients []client
	layers  []int
}

var _ rebalance.Mover = (*mover)(nil)

// Apply writes the plan and restarts one replica after the other, each only
// when the one before is healthy again. When one fails, the old file is put
// back and the replicas restarted so far are restarted with it, so that all
// serve the old placement.
func (m *mover) Apply(ctx context.Context, generation uint64, _, next plan.Placement) error {
	old, err := os.ReadFile(m.o.PlanFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("plan file: %w", err)
	}
	var b bytes.Buffer
	if err := format.WritePlan(&b, format.SGLang, format.Plan{Placement: next, Layers: m.layers, Hidden: m.o.Hidden}); err != nil {
		return err
	}
	if err := format.Replace(m.o.PlanFile, b.Bytes()); err != nil {
		return err
	}
	for i, c := range m.clients {
		m.o.Log.Info("restarting replica", "replica", c.host(), "generation", generation)
		if err := m.restart(ctx, c); err != nil {
			return errors.Join(err, m.restore(ctx, old, m.clients[:i+1]))
		}
	}
	return nil
}

// restart runs the hook for one replica and waits until it is healthy.
func (m *mover) restart(ctx context.Context, c client) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.ReadyTimeout)
	defer cancel()
	args := append(append([]string(nil), m.o.Hook[1:]...), c.replica.URL, m.o.PlanFile)
	out, err := exec.CommandContext(ctx, m.o.Hook[0], args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: hook for %s: %w: %s", ErrHook, c.host(), err, tail(out))
	}
	return c.ready(ctx)
}

// tail is the end of a hook's output, for a message.
func tail(out []byte) []byte {
	out = bytes.TrimSpace(out)
	return out[max(0, len(out)-200):]
}

// restore brings the old file back, and the replicas that may run the new one.
// Without an old file the replicas started trivially, and the file is removed.
func (m *mover) restore(ctx context.Context, old []byte, done []client) error {
	var err error
	if old == nil {
		err = os.Remove(m.o.PlanFile)
	} else {
		err = format.Replace(m.o.PlanFile, old)
	}
	if err != nil {
		return fmt.Errorf("restore the old plan: %w", err)
	}
	for _, c := range done {
		if err := m.restart(context.WithoutCancel(ctx), c); err != nil {
			return fmt.Errorf("restore the old plan: %w", err)
		}
	}
	return nil
}
