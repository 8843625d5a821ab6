package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/testpg"
)

// someInstances are one that balances experts and one that does not.
type someInstances struct{ orders []string }

func (*someInstances) Status() []pool.Status {
	return []pool.Status{{Name: "dense", Model: "hub-edge"}, {Name: "mixed", Model: "hub-cloud", Role: "decode"}}
}

func (*someInstances) SetJoined([]pool.Joined) {}

func (s *someInstances) Call(_ context.Context, name, method, path string, in, out any) error {
	switch {
	case name == "dense":
		return openai.ParseError(http.StatusNotFound, []byte(`{"error":{"message":"balances no experts","code":"no_experts"}}`))
	case name != "mixed":
		return fmt.Errorf("%w: %q", pool.ErrUnknown, name)
	case method == http.MethodGet:
		*out.(*expertsView) = expertsView{Experts: 16, Generation: 7}
		return nil
	}
	b, _ := json.Marshal(in)
	s.orders = append(s.orders, path+" "+string(b))
	return json.Unmarshal([]byte(`{"decision":{"action":"move","reason":"triggered","transfers":3},"placement":[[1,0]]}`), out)
}

func TestExperts(t *testing.T) {
	url, fleet := testpg.Start(t), &someInstances{}
	var l list[instanceExperts]
	alone := start(t, options(t, url))
	alone.ready(t)
	if alone.admin(t, http.MethodGet, "experts", nil).into(t, &l); len(l.Data) != 0 {
		t.Errorf("without instances: %+v", l.Data)
	}
	o := alone.o
	o.DataDir = t.TempDir()
	p := startWith(t, o, fleet)
	p.ready(t)
	p.admin(t, http.MethodGet, "experts", nil).into(t, &l)
	if len(l.Data) != 2 || l.Data[0].Problem != "balances no experts" || l.Data[0].Experts != nil || l.Data[1].Experts.Generation != 7 || l.Data[1].Role != "decode" {
		t.Errorf("%+v", l.Data)
	}
	var r rebalanced
	p.admin(t, http.MethodPost, "experts/mixed/rebalance", nil).into(t, &r)
	if r.Instance != "mixed" || r.Decision.Transfers != 3 || len(r.Placement) != 1 {
		t.Errorf("%+v", r)
	}
	p.admin(t, http.MethodPost, "experts/mixed/plan", nil).into(t, &r)
	want := []string{expertsPath + ` {"action":"rebalance"}`, expertsPath + ` {"action":"plan"}`}
	if fmt.Sprint(fleet.orders) != fmt.Sprint(want) {
		t.Errorf("orders %v", fleet.orders)
	}
	for _, name := range []string{"dense", "nobody"} {
		if a := p.admin(t, http.MethodPost, "experts/"+name+"/rebalance", nil); a.status != http.StatusNotFound {
			t.Errorf("%s: %s", name, a)
		}
	}
	var audit list[struct{ Action, ObjectID string }]
	p.admin(t, http.MethodGet, "audit?action=experts.rebalance", nil).into(t, &audit)
	if len(audit.Data) != 1 {
		t.Errorf("audit %+v", audit.Data)
	}
}
