package cloud

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
)

// TestDrain lets a request under way end, over each transport.
func TestDrain(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"} {
		t.Run(proto, func(t *testing.T) {
			gate := make(chan struct{})
			r := startCloud(t, engineFake{gate: gate}, func(c *Config) { c.Drain = time.Minute })
			rt := r.transports(t, nil)[proto]
			type answer struct {
				status int
				body   string
			}
			got := make(chan answer, 1)
			go func() {
				defer close(got) // send ends its goroutine when it fails
				resp, body := send(t, rt, r.tlsURL()+"/v1/chat/completions", r.key, hello)
				got <- answer{resp.StatusCode, body}
			}()
			await(t, "request under way", func() bool { return r.gateway.InFlight() == 1 })
			stopped := make(chan error, 1)
			go func() { stopped <- r.stop() }()
			await(t, "draining", func() bool { return r.servers.draining.Load() })
			close(gate)
			if a := <-got; a.status != 200 {
				t.Errorf("the request under way got %d %s", a.status, a.body)
			}
			if err := <-stopped; err != nil {
				t.Errorf("run: %v", err)
			}
			if n := len(r.plane.ledger()); n != 1 {
				t.Errorf("%d ledger rows", n)
			}
		})
	}
}

// TestDrainEnds cuts a request that does not end by itself.
func TestDrainEnds(t *testing.T) {
	reached := make(chan struct{}, 1)
	engine := engineFake{gate: make(chan struct{})}
	r := startCloud(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			reached <- struct{}{}
		}
		engine.ServeHTTP(w, r)
	}), func(c *Config) { c.Drain = 50 * time.Millisecond })
	rt := r.transports(t, nil)["HTTP/3.0"]
	failed := make(chan error, 1)
	go func() {
		req, _ := http.NewRequest(http.MethodPost, r.tlsURL()+"/v1/chat/completions", strings.NewReader(hello))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+r.key)
		resp, err := rt.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	<-reached // an attempt runs
	if err := r.stop(); err != nil {
		t.Errorf("run: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("the request was answered")
	}
	await(t, "the request's ledger row", func() bool { return len(r.plane.ledger()) == 1 })
	if row := r.plane.ledger()[0]; row.Outcome != tenants.OutcomeClientCancelled {
		t.Errorf("ledger row %+v", row)
	}
}
