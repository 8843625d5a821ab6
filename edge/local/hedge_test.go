package local_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/tenants"
)

// The cloud begins while the edge's window ends well: the cloud was first, its
// answer is shown and the edge's attempt accounted.
func TestHedgeCloudBeginsAsTheWindowEnds(t *testing.T) {
	clock, over := newClock(), make(chan struct{})
	var race atomic.Bool
	n := startStreaming(t, func(o *local.Options) {
		o.Now = clock.now
		pieces := 0
		o.Generator = &middle{Generator: o.Generator, watch: func(ctx context.Context, p *upstream.Progress, next upstream.Watch) error {
			if pieces++; race.Load() && pieces == 4 {
				close(over)
				<-ctx.Done() // the cloud has begun
			}
			return next(p)
		}, after: func() { pieces = 0 }}
	})
	n.setHandoff(`{"name":"p","hedge":true}`, false)
	n.teach(clock, 15*time.Second, 8*time.Second)
	race.Store(true)
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001})
	n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
			cloudtest.Say("from the cloud")(w, r)
		case <-r.Context().Done():
		}
	})
	rows := len(n.rows.all())
	a := n.chatAbout("river", `,"stream":true`)
	if a.text != "from the cloud" || !a.done || a.weir.Reason != "hedge_won" {
		t.Errorf("%q done %v error %q, %+v", a.text, a.done, a.errCode, a.weir)
	}
	if got := n.rows.all()[rows:]; len(got) != 1 || got[0].Outcome != tenants.OutcomeEscalated {
		t.Errorf("rows %+v", got)
	}
}

// slowStart lets a local generation start only when it has been called off.
type slowStart struct {
	trace.Tracer
	on atomic.Bool
}

func (s *slowStart) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	if s.on.Load() && strings.HasPrefix(name, "generate ") {
		<-ctx.Done()
	}
	return s.Tracer.Start(ctx, name, o...)
}

// The cloud begins before the edge's model has been asked: there is no local
// attempt, hence no row of one.
func TestHedgeCloudBeginsBeforeTheEdge(t *testing.T) {
	clock, slow := newClock(), &slowStart{}
	n := startStreaming(t, func(o *local.Options) {
		o.Now, slow.Tracer = clock.now, o.Telemetry.Tracer
		o.Telemetry.Tracer = slow
	})
	n.setHandoff(`{"name":"p","hedge":true}`, false)
	n.teach(clock, 15*time.Second, 8*time.Second)
	slow.on.Store(true)
	for _, stream := range []string{"", `,"stream":true`} {
		rows, seen := len(n.rows.all()), len(n.worker.Seen())
		a := n.chatAbout("river", stream)
		if a.text != "from the cloud" || a.weir.Reason != "hedge_won" || a.weir.Attempts != 1 {
			t.Errorf("%s: %q error %q, %+v", stream, a.text, a.errCode, a.weir)
		}
		if got := n.rows.all()[rows:]; len(got) != 0 || len(n.worker.Seen()) != seen {
			t.Errorf("%s: the worker was asked %d times, rows %+v", stream, len(n.worker.Seen())-seen, got)
		}
	}
}

// lateCloud answers as soon as nobody wants the answer any more.
type lateCloud struct {
	local.Cloud
	on atomic.Bool
}

func (l *lateCloud) Do(ctx context.Context, r uplink.Request) (*uplink.Response, error) {
	if !l.on.Load() {
		return l.Cloud.Do(ctx, r)
	}
	<-ctx.Done()
	event := `data: {"id":"c","model":"hub-cloud","choices":[{"index":0,"delta":{"content":"late"}}]}` + "\n\n"
	return &uplink.Response{Attempts: 1, Response: &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(event))}}, nil
}

// An answer of the cloud that begins as it is dropped does not end the edge's,
// which was kept before.
func TestHedgeCloudBeginsAsItIsDropped(t *testing.T) {
	clock, late := newClock(), &lateCloud{}
	n := startStreaming(t, func(o *local.Options) {
		o.Now, late.Cloud = clock.now, o.Cloud
		o.Cloud = late
	})
	n.setHandoff(`{"name":"p","hedge":true}`, false)
	n.teach(clock, 15*time.Second, 8*time.Second)
	late.on.Store(true)
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, Gate: n.on("w3"), GateAt: 6})
	a := n.chatAbout("river", `,"stream":true`)
	if a.text != eight || !a.done || a.weir.Reason != "confident" || a.weir.Attempts != 2 {
		t.Errorf("%q done %v error %q, %+v", a.text, a.done, a.errCode, a.weir)
	}
}

// The edge is first and doubts, when there is no time left to ask the cloud:
// the cloud has been asked, and its answer is waited for.
func TestHedgeEdgeDoubts(t *testing.T) {
	clock, ended := newClock(), make(chan struct{}, 300)
	n := startStreaming(t, func(o *local.Options) {
		o.Now = clock.now
		o.Generator = &middle{Generator: o.Generator, after: func() { ended <- struct{}{} }}
	})
	n.setHandoff(`{"name":"p","hedge":true}`, false)
	n.teach(clock, 15*time.Second, 8*time.Second)
	for _, stream := range []string{"", `,"stream":true`} {
		for len(ended) > 0 {
			<-ended
		}
		slow := unsure
		slow.Before = func() { clock.add(13 * time.Second) } // of 20; the cloud takes 8
		n.worker.Set(slow)
		n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-ended:
				cloudtest.Say("from the cloud")(w, r)
			case <-r.Context().Done():
			}
		})
		a := n.chatAbout("river", stream)
		if a.text != "from the cloud" || a.weir.Reason != "low_confidence" || a.weir.Attempts != 2 {
			t.Errorf("%s: %q %+v", stream, a.text, a.weir)
		}
	}
}
