package local

import (
	"strconv"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/tenants"
)

// look sees whether the cloud has failed meanwhile. That it has begun ends the
// generation by itself.
func (f *flight) look() error {
	select {
	case <-f.asked.came:
		if f.asked.reply == nil {
			_, err := f.asked.wait(f.c)
			return f.loseCloud(err)
		}
	default:
	}
	return nil
}

func (f *flight) loseCloud(err error) error {
	f.asked, f.cloud, f.c.hedged = nil, err, time.Time{}
	why := fallbackReason(f.ctx, f.cause, err)
	if f.broken {
		why = cascade.ReasonValidatorFailed
	}
	return f.act(f.m.CloudFail(why))
}

// overtake ends the local generation for the cloud's answer, unless the edge's
// was kept before. It is called from asking's goroutine.
func (f *flight) overtake() {
	if f.claimed.CompareAndSwap(false, true) {
		f.stop(errOvertaken)
	}
}

// handOver sends the cloud's answer, alone or after what was shown.
func (f *flight) handOver(r *cloudReply) error {
	kind, shown := f.asked.kind, f.asked.shown
	f.asked = nil
	out := f.m.CloudBegin()
	f.record(tenants.OutcomeEscalated, out.Reason)
	f.s.metrics.handovers.WithLabelValues(kind.String(), strconv.FormatBool(f.sealed)).Inc()
	if err := f.act(out); err != nil {
		r.close()
		return err
	}
	if kind == stream.AskRestart {
		return f.s.relay(f.ctx, f.c, f.out, r, out.Reason)
	}
	f.c.result.HandoffToken = shown
	if err := f.goOn(r, kind, shown, out.Reason); err != nil {
		return f.s.broken(f.ctx, f.c, r, err)
	}
	return nil
}

// dropCloud ends a request to the cloud whose answer nobody needs.
func (f *flight) dropCloud() {
	if f.asked != nil {
		f.asked.drop()
		f.c.lost = f.c.reserved // what it has cost is the cloud's to know
		f.asked = nil
	}
}
