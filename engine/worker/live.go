package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/symptoms"
)

// How a lost runner is loaded anew. One that is lost again and again within
// calm ends the process: whoever started it knows what to do then.
const (
	firstPause = 250 * time.Millisecond
	mostLost   = 5
	calm       = time.Minute
)

// examineEvery is the time between two looks at what may be about to fail.
const examineEvery = 5 * time.Second

// errLost says that a runner panicked or keeps failing.
var errLost = errors.New("the model was lost")

// live serves one loaded model after another until ctx ends.
func (w *instance) live(ctx context.Context, served chan error) error {
	pause, lost := firstPause, 0
	for {
		began := time.Now()
		err := w.life(ctx, served)
		if !errors.Is(err, errLost) {
			return err
		}
		if time.Since(began) > calm {
			pause, lost = firstPause, 0
		}
		w.lost <- time.Now()
		if lost++; lost == mostLost {
			w.shutdown(lastWords)
			return fmt.Errorf("gave up after %d losses: %w", lost, err)
		}
		w.log.Error("model is loaded anew", "error", err, "pause", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause *= 2
	}
}

// examine says why the worker expects to fail, as long as it does, until ctx ends.
func (w *instance) examine(ctx context.Context) {
	watch := symptoms.New(w.o.Config.MemoryStalls)
	tick := time.NewTicker(examineEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case at := <-w.lost:
			watch.Lost(at)
		case <-tick.C:
		}
		w.api.Failing(watch.Look(time.Now()))
	}
}

// life loads the model and serves with it.
func (w *instance) life(ctx context.Context, served chan error) error {
	runner, err := w.load(ctx)
	if runner == nil || err != nil {
		return err
	}
	err = w.run(ctx, runner, served)
	w.udp = nil // closed with the hand-offs' endpoint
	w.id.Epoch = uuid.NewString()
	w.experts.now.Store(nil)
	w.api.Lost(w.id.Epoch) // from here on nobody uses the runner
	return errors.Join(err, closeRunner(runner))
}

// closeRunner frees a runner, which may be broken.
func closeRunner(r engine.Runner) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("closing the model: it panicked: %v", p)
		}
	}()
	return r.Close()
}
