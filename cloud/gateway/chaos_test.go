package gateway

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

// chaos makes an instance fail at random, in every way that the tests know.
func chaos(f *instanceFake, rng *rand.Rand) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		mu.Lock()
		n := rng.IntN(20)
		mu.Unlock()
		kv, _ := body["kv_transfer_params"].(map[string]any)
		switch stream := body["stream"] == true && kv["do_remote_decode"] != true; {
		case n == 0:
			return dies(w, r, body)
		case n == 1:
			return says(500, "boom")(w, r, body)
		case n == 2:
			return says(429, "")(w, r, body)
		case n == 3:
			return says(200, "{")(w, r, body)
		case n == 4 && stream:
			return f.diesAfter(2)(w, r, body)
		case n == 5 && stream:
			return f.diesAfter(0)(w, r, body)
		case n == 6:
			return f.hangsAfter(0)(w, r, body)
		}
		return false
	}
}

// patience is how long the gateway waits for an instance in this test, and an
// impatient client at most for the gateway.
const patience = time.Second

// TestEveryRequestEndsOnce sends many requests through failing instances,
// some from clients that leave, and checks the books afterwards: as many rows
// as attempts, at most one answer per request, nothing left in flight.
func TestEveryRequestEndsOnce(t *testing.T) {
	var fakes []*instanceFake
	for i, role := range []string{"prefill", "prefill", "decode", "decode", "decode"} {
		f := newInstance(t, role[:1]+string(rune('1'+i)), role)
		f.on(chaos(f, rand.New(rand.NewPCG(1, uint64(i)))))
		fakes = append(fakes, f)
	}
	r := newRig(t, func(o *Options) {
		o.Timeouts = Timeouts{FirstByte: patience, Stall: patience, Answer: patience}
	}, fakes...)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(client.CloseIdleConnections)
	var mu sync.Mutex
	whole := map[string]bool{} // operations whose client got all of a good answer
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(worker)))
			for range 40 {
				op, ok := r.impatient(t, client, rng)
				mu.Lock()
				if ok {
					whole[op] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	await(t, "nothing in flight", func() bool { return r.InFlight() == 0 })
	for _, s := range r.opts.Pool.Status() {
		if s.InFlight != (route.InFlight{}) {
			t.Errorf("%s has %+v in flight", s.Name, s.InFlight)
		}
	}
	rows, answered := map[string]int{}, map[string]bool{}
	seen := map[string]bool{}
	for _, row := range r.ledger(t) {
		if seen[row.AttemptID] {
			t.Errorf("attempt %s has two rows", row.AttemptID)
		}
		seen[row.AttemptID] = true
		if answered[row.OperationID] {
			t.Errorf("operation %s went on after its end", row.OperationID)
		}
		answered[row.OperationID] = row.Outcome != tenants.OutcomeUpstreamError
		rows[row.OperationID]++
		if row.Outcome == tenants.OutcomeUpstreamError && row.CostNanoUSD != 0 || row.Outcome == tenants.OutcomeOK && row.OutputTokens != 4 {
			t.Errorf("row %+v", row)
		}
	}
	for op, n := range rows {
		if n > 3 {
			t.Errorf("operation %s had %d attempts", op, n)
		}
	}
	for op := range whole {
		if !answered[op] {
			t.Errorf("operation %s was answered but not booked", op)
		}
	}
	if len(whole) < 100 {
		t.Errorf("only %d of 320 requests were answered: failover does not work", len(whole))
	}
}

// impatient sends one request and leaves early one time in three.
func (r *rig) impatient(t *testing.T, client *http.Client, rng *rand.Rand) (op string, whole bool) {
	wait := time.Minute
	if rng.IntN(3) == 0 {
		wait = time.Duration(1 + rng.Int64N(int64(patience)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	body := ask1
	if rng.IntN(2) == 0 {
		body = ask1s
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return "", false
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	resp, err := client.Do(req)
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	op = resp.Header.Get(contract.HeaderRequestID)
	good := resp.StatusCode == http.StatusOK && (body == ask1 || strings.HasSuffix(string(data), "data: [DONE]\n\n"))
	return op, err == nil && good
}
