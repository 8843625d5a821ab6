package cloud

import (
	"context"
	"time"

	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway"
)

const (
	// armsEvery is how often what equal pools have earned is read.
	armsEvery   = 3 * time.Second
	armsTimeout = 3 * time.Second
)

// followArms lets the models know what their equal pools have earned over all
// gateways, until ctx ends. While it cannot be read the last that is known holds.
func followArms(ctx context.Context, read func(context.Context) (map[string]cascading.Arms, error), models map[string]gateway.Model, every time.Duration) {
	equals := map[string]*cascading.Entry{}
	for name, m := range models {
		if m.Cascade != nil && len(m.Cascade.Equals()) > 1 {
			equals[name] = m.Cascade
		}
	}
	if len(equals) == 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, armsTimeout)
		if all, err := read(one); err == nil { // the plane tells of a database that is away
			for name, e := range equals {
				e.SetArms(all[name])
			}
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
