package loop

import (
	"errors"
	"fmt"

	"github.com/weirhq/weir/engine"
)

// errPanic says that the runner panicked. What it holds cannot be trusted.
var errPanic = errors.New("the runner panicked")

// guard makes errors of the panics of a runner that is at work, and keeps
// everybody from one that has panicked.
type guard struct {
	engine.Runner
	lost error // the panic
}

func (g *guard) call(f func() error) (err error) {
	if g.lost != nil {
		return g.lost
	}
	defer func() {
		if p := recover(); p != nil {
			g.lost = fmt.Errorf("%w: %v", errPanic, p)
			err = g.lost
		}
	}()
	return f()
}

func (g *guard) Step(spans []engine.Span) (rows [][]float32, err error) {
	err = g.call(func() error { rows, err = g.Runner.Step(spans); return err })
	return rows, err
}

func (g *guard) Copy(dst, src engine.Seq, n int) error {
	return g.call(func() error { return g.Runner.Copy(dst, src, n) })
}

func (g *guard) Forget(s engine.Seq, n int) error {
	return g.call(func() error { return g.Runner.Forget(s, n) })
}

func (g *guard) ExportKV(dst []byte, s engine.Seq, from int) (kv []byte, err error) {
	err = g.call(func() error { kv, err = g.Runner.ExportKV(dst, s, from); return err })
	return kv, err
}

func (g *guard) ImportKV(s engine.Seq, parts ...[]byte) (n int, err error) {
	err = g.call(func() error { n, err = g.Runner.ImportKV(s, parts...); return err })
	return n, err
}
