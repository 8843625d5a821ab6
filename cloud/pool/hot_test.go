package pool

import (
	"log/slog"
	"testing"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/prefix"
)

// keeps notes what it is told of a request's class, and says that it was kept.
type keeps struct{ saw *route.ClassView }

func (keeps) Spec() route.Spec { return route.Spec{} }

func (k keeps) Decide(o *route.Observation) route.Decision {
	*k.saw = o.Req.Class
	return route.Decision{Action: route.Reject{}, Heat: route.HeatKept}
}

// TestClasses: requests are of one class that share what an instance holds, and
// an arrival is counted once.
func TestClasses(t *testing.T) {
	p, err := New(Options{Log: slog.New(slog.DiscardHandler), Members: []Member{{Name: "a", URL: "http://a", Model: "m"}, {Name: "b", URL: "http://b", Model: "m"}}})
	if err != nil {
		t.Fatal(err)
	}
	common := keysOf(40)
	other := func(n byte) []prefix.Key { return append(append([]prefix.Key(nil), common[:8]...), prefix.Key{n, 7}) }
	var saw route.ClassView
	ask := func(trigger route.Trigger, keys []prefix.Key) route.ClassView {
		p.Select(keeps{&saw}, trigger, Ask{RequestView: route.RequestView{Model: "m", PromptBytes: 4000}, Keys: map[string][]prefix.Key{"": keys}}, 1)
		return saw
	}
	for i, step := range []struct {
		trigger route.Trigger
		keys    []prefix.Key
		want    route.ClassView
	}{
		{route.Arrival, other(1), route.ClassView{Count: 1, Share: 1}},
		{route.Arrival, other(2), route.ClassView{Count: 1, Share: .5}}, // nobody holds what they share
		{route.Retry, other(2), route.ClassView{}},
		{route.Arrival, nil, route.ClassView{}}, // a request without keys
	} {
		if got := ask(step.trigger, step.keys); got != step.want {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
	for _, k := range common[:8] {
		p.inst[1].index.add(k)
	}
	for i := range 3 {
		want := route.ClassView{Count: i + 1, Share: float64(i+1) / float64(i+3), Streak: i}
		if got := ask(route.Arrival, other(byte(10+i))); got != want {
			t.Errorf("sharing the held prefix: %+v, want %+v", got, want)
		}
	}
	for _, k := range common {
		p.inst[0].index.add(k)
	}
	long := ask(route.Arrival, common)
	changed := append(append([]prefix.Key(nil), common[:35]...), prefix.Key{9, 9})
	if again := ask(route.Arrival, changed); long.Count != 1 || again.Count != 2 {
		t.Errorf("prompts that share 2 KiB: %+v, then %+v", long, again)
	}
}
