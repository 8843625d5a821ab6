package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/tenants"
)

// TestVLLM runs the two legs against fake engines that speak vLLM's protocol:
// decode fetches its KV from where the prefill leg said, and fails if it
// cannot.
func TestVLLM(t *testing.T) {
	engine := func() *fake.Engine { return fake.New(fake.Options{Model: "big"}) }
	p, d := engine(), engine()
	ps, ds := httptest.NewServer(p), httptest.NewServer(d)
	t.Cleanup(ps.Close)
	t.Cleanup(ds.Close)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	var fakes *pool.Pool
	r := newRig(t, func(o *Options) {
		var err error
		fakes, err = pool.New(pool.Options{Client: client, Log: o.Log, Members: []pool.Member{
			{Name: "p", URL: ps.URL, Role: route.Prefill, Model: "big"}, {Name: "d", URL: ds.URL, Role: route.Decode, Model: "big"}}})
		if err != nil {
			t.Fatal(err)
		}
		o.Pool, o.Client = fakes, client
	})
	background(t, fakes.Run)
	await(t, "both ready", func() bool { s := fakes.Status(); return s[0].Ready && s[1].Ready })
	for _, body := range []string{ask1, ask1s, ask1su} {
		got := r.chat(t, body)
		if got.status != 200 || strings.Contains(got.body, "kv_transfer_params") || strings.Contains(got.body, `"usage":null`) && body == ask1s {
			t.Fatalf("answer %d %s", got.status, got.body)
		}
	}
	rows := r.ledger(t)
	if len(rows) != 3 {
		t.Fatalf("ledger %v", outcomes(rows))
	}
	for _, row := range rows {
		if row.Outcome != tenants.OutcomeOK || row.UsageSource != tenants.UsageUpstream || row.InputTokens == 0 || row.OutputTokens != 16 {
			t.Errorf("ledger row %+v", row)
		}
	}
	if p.Calls() != 3 || d.Calls() != 3 {
		t.Errorf("%d prefill and %d decode calls, want 3 each", p.Calls(), d.Calls())
	}
}
