package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/internal/testpg"
)

// onePool is an instance that does as it is told.
type onePool struct {
	orders []string
	more   []pool.Status
	mu     sync.Mutex
	joined []pool.Joined
}

func (o *onePool) Status() []pool.Status {
	return append([]pool.Status{{Name: "d1", From: pool.FromStatic, Model: "big", Role: "decode", Ready: true, Breaker: "closed", Report: &pool.Report{Running: 3}}}, o.more...)
}

func (o *onePool) SetJoined(list []pool.Joined) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.joined = list
}

func (o *onePool) Call(_ context.Context, name, method, path string, in, out any) error {
	if name != "d1" {
		return fmt.Errorf("%w: %q", pool.ErrUnknown, name)
	}
	b, _ := json.Marshal(in)
	o.orders = append(o.orders, method+" "+path+" "+string(b))
	return json.Unmarshal([]byte(`{"role":"mixed","draining":true,"requests":4}`), out)
}

func TestPools(t *testing.T) {
	url, fleet := testpg.Start(t), &onePool{}
	var l list[pool.Status]
	alone := start(t, options(t, url))
	alone.ready(t)
	if alone.admin(t, http.MethodGet, "pools", nil).into(t, &l); len(l.Data) != 0 {
		t.Errorf("without instances: %+v", l.Data)
	}
	o := alone.o
	o.DataDir = t.TempDir()
	p := startWith(t, o, fleet)
	p.ready(t)
	if p.admin(t, http.MethodGet, "pools", nil).into(t, &l); len(l.Data) != 1 || l.Data[0].Report.Running != 3 || l.Data[0].Breaker != "closed" {
		t.Errorf("%+v", l.Data)
	}
	var changed poolChanged
	p.admin(t, http.MethodPost, "pools/d1/role", map[string]any{"role": "mixed"}).into(t, &changed)
	var drained poolDrained
	p.admin(t, http.MethodPost, "pools/d1/drain", map[string]any{"draining": true}).into(t, &drained)
	if changed.Role != "mixed" || changed.Instance != "d1" || !drained.Draining || drained.Requests != 4 {
		t.Errorf("%+v %+v", changed, drained)
	}
	want := []string{`POST /instance/v1/role {"role":"mixed"}`, `POST /instance/v1/drain {"draining":true}`}
	if fmt.Sprint(fleet.orders) != fmt.Sprint(want) {
		t.Errorf("orders %v", fleet.orders)
	}
	if a := p.admin(t, http.MethodPost, "pools/d1/role", map[string]any{"role": "king"}); a.status != http.StatusBadRequest {
		t.Errorf("role king: %s", a)
	}
	if a := p.admin(t, http.MethodPost, "pools/d1/role", map[string]any{"role": "prefill"}); a.status != http.StatusConflict || !strings.Contains(fmt.Sprint(a), "last_decoder") || len(fleet.orders) != 2 {
		t.Errorf("the last that decodes becomes a prefill instance: %s, orders %v", a, fleet.orders)
	}
	fleet.more = []pool.Status{{Name: "p1", Model: "big", Role: "prefill", Ready: true}, {Name: "d2", Model: "big", Role: "decode"}, {Name: "d3", Model: "small", Role: "decode", Ready: true}}
	if a := p.admin(t, http.MethodPost, "pools/d1/role", map[string]any{"role": "prefill"}); a.status != http.StatusConflict {
		t.Errorf("none of the others decodes for it: %s", a)
	}
	fleet.more[1].Ready = true
	if a := p.admin(t, http.MethodPost, "pools/d1/role", map[string]any{"role": "prefill"}); a.status != http.StatusOK || len(fleet.orders) != 3 {
		t.Errorf("beside another that decodes: %s", a)
	}
	if a := p.admin(t, http.MethodPost, "pools/nobody/drain", map[string]any{"draining": true}); a.status != http.StatusNotFound || !strings.Contains(fmt.Sprint(a), "nobody") {
		t.Errorf("unknown instance: %s", a)
	}
	if a := p.admin(t, http.MethodDelete, "instances/d1", nil); a.status != http.StatusConflict || !strings.Contains(fmt.Sprint(a), "instance_configured") {
		t.Errorf("forgetting one of the configuration: %s", a)
	}
	if a := p.admin(t, http.MethodDelete, "instances/nobody", nil); a.status != http.StatusNotFound {
		t.Errorf("forgetting nobody: %s", a)
	}
	var audit list[struct{ Action, ObjectID string }]
	if p.admin(t, http.MethodGet, "audit?object_kind=instance", nil).into(t, &audit); len(audit.Data) != 3 {
		t.Errorf("audit %+v", audit.Data)
	}
}
