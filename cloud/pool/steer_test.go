package pool

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
)

// TestRolesFollowTheLoad: an idle side gives an instance to one that is behind,
// once in a dwell time.
func TestRolesFollowTheLoad(t *testing.T) {
	var members []Member
	for _, name := range []string{"d1", "p1", "p2"} {
		members = append(members, Member{Name: name, URL: "http://h", Model: "m"})
	}
	p := still(t, members...)
	tell := func(name, role string, load state.Load, c *cost.Model) {
		if err := p.hear(p.find(name), &state.Message{Full: true, Seq: 1, Epoch: "", Role: role, Health: "ok", Load: load, Cost: c}); err == nil {
			t.Fatal("a message without an epoch was taken")
		}
		if err := p.hear(p.find(name), &state.Message{Full: true, Seq: 1, Epoch: "e", Role: role, Health: "ok", Load: load, Cost: c}); err != nil {
			t.Fatal(err)
		}
	}
	tell("p1", "prefill", state.Load{Running: 2}, nil)
	tell("p2", "prefill", state.Load{}, nil)
	tell("d1", "decode", state.Load{Running: 9, StepMS: 80}, nil)
	p2 := p.find("p2")
	if got := p.reroles(roles.Params{}); len(got) != 1 || got[p2].Role != route.Decode || got[p2].Reason != roles.ReasonDecode {
		t.Fatalf("%+v, want the idle p2 to decode", got)
	}
	p.reroled(p2)
	if got := p.reroles(roles.Params{}); len(got) != 0 {
		t.Errorf("a second change at once: %+v", got)
	}
	later(p, time.Minute)
	tell("d1", "decode", state.Load{Running: 1, StepMS: 5}, nil)
	tell("p2", "decode", state.Load{}, nil)
	tell("p1", "prefill", state.Load{PrefillTokensWaiting: 5000}, &cost.Model{Pieces: []cost.Piece{{PerPrefill: 1}}})
	if got := p.reroles(roles.Params{}); len(got) != 1 || got[p2].Role != route.Prefill {
		t.Errorf("%+v, want the idle p2 to prefill", got)
	}
}

// TestOrders: a worker takes an order, and an engine that knows none does not.
func TestOrders(t *testing.T) {
	_, url := stateful(t, fake.Options{})
	p := start(t, Member{Name: "a", URL: url, Model: "m"})
	await(t, "heard of it", func() bool { return status(p, "a").Report != nil })
	if !p.order(t.Context(), p.find("a"), "role", map[string]string{"role": "decode"}) {
		t.Error("the order was not taken")
	}
	await(t, "the role changed", func() bool { return status(p, "a").Role == route.Decode })
	if p.order(t.Context(), p.find("a"), "dance", map[string]string{}) {
		t.Error("an unknown order was taken")
	}
}

// TestDrainingOrders: an instance that does not answer does not delay the orders
// to another, and an order that was not taken is given again, as is one that was
// taken while the stream goes on where it is.
func TestDrainingOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := still(t, Member{Name: "hung", URL: "http://hung", Model: "m"}, Member{Name: "refuses", URL: "http://refuses", Model: "m"},
			Member{Name: "taker", URL: "http://taker", Model: "m"})
		began := time.Now()
		p.now = func() time.Duration { return time.Since(began) }
		for name, health := range map[string]string{"hung": healthDraining, "refuses": healthDraining, "taker": healthOK} {
			m := &state.Message{Full: true, Seq: 1, Epoch: "e", Role: "mixed", Health: health,
				Requests: []state.Request{{Operation: "op", Phase: state.Decode}}}
			if err := p.hear(p.find(name), m); err != nil {
				t.Fatal(err)
			}
			p.openLocked(name, &Ask{RequestView: chat.RequestView, Operation: "op", Movable: true}, 0)
		}
		var mu sync.Mutex
		orders := map[string]int{}
		p.opts.Client = &http.Client{Transport: engineFunc(func(r *http.Request) (int, io.Reader) {
			mu.Lock()
			orders[r.URL.Host]++
			n := orders[r.URL.Host]
			mu.Unlock()
			switch {
			case r.URL.Host == "hung":
				<-r.Context().Done()
				return http.StatusGatewayTimeout, strings.NewReader("{}")
			case n == 1:
				return http.StatusConflict, strings.NewReader("{}")
			}
			return http.StatusOK, strings.NewReader("{}")
		})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.steer(ctx); close(done) }()
		time.Sleep(steerEvery + steerEvery/2)
		mu.Lock()
		if orders["hung"] != 1 || orders["refuses"] != 1 {
			t.Errorf("orders of the first look: %v", orders)
		}
		mu.Unlock()
		time.Sleep(departure - steerEvery)
		mu.Lock()
		if orders["refuses"] != 2 {
			t.Errorf("orders before the stream should have left: %v", orders)
		}
		mu.Unlock()
		time.Sleep(departure)
		cancel()
		<-done
		if orders["hung"] < 2 || orders["refuses"] != 3 || orders["taker"] != 0 {
			t.Errorf("orders: %v", orders)
		}
	})
}

// TestRefusedRole: an instance that does not change its role is not asked again
// at the next look.
func TestRefusedRole(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"})
	p.opts.Client = &http.Client{Transport: engineFunc(func(*http.Request) (int, io.Reader) {
		return http.StatusConflict, strings.NewReader("{}")
	})}
	p.rerole(t.Context(), p.inst[0], roles.Decision{ID: "a", Role: route.Decode})
	if p.inst[0].changed == 0 {
		t.Error("the dwell time has not begun")
	}
}
