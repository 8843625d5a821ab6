package poolse2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// dwell is the least time between two changes of roles in a pool.
const dwell = 10 * time.Second

// TestRolesFollowTheLoad shifts the load of a pool from prompts to answers: the
// controller moves an instance to where the work is, not before the last change
// has had its time, and leaves one of each role. No stream notices.
func TestRolesFollowTheLoad(t *testing.T) {
	f := emptyFleet(t, loopback{})
	f.cloud = map[string]any{"roles": "auto"}
	for name, role := range map[string]string{"p1": "prefill", "d1": "decode", "d2": "decode"} {
		f.instance(t, name, role, "fake-engine", "--model", model, "--weir", "--name", name, "--role", role,
			"--per-prompt-token", "2ms", "--itl", "5ms", "--per-sequence", "3ms", "--log-level", "error")
	}
	f.gateways(t, true)
	t.Run("ordered", f.reroledUnderStreams)

	w := watchRoles(t, f)
	prompts := f.load(t, 8, strings.Repeat("long ", 200), 4)
	eventually(t, "a second prefill instance", func() bool { return w.roles()["prefill"] == 2 })
	prompts()
	answers := f.load(t, 40, "short", 100)
	eventually(t, "a second decode instance", func() bool { return w.roles()["decode"] == 2 })
	if soak { // the answers would like the last prefill instance, too
		time.Sleep(dwell + 5*time.Second)
	}
	answers()
	w.stop()
	if len(w.changes) < 2 {
		t.Errorf("the watch has missed changes: %v", w.changes)
	}
	for i := 1; i < len(w.changes); i++ {
		if most := w.changes[i].seen.Sub(w.changes[i-1].before); most < dwell {
			t.Errorf("two changes within %v", most)
		}
	}
	f.idle(t)
}

// reroledUnderStreams has an operator change the roles of both decode instances
// in turn, under streams.
func (f *fleet) reroledUnderStreams(t *testing.T) {
	want := f.undisturbed(t)
	answers := f.crowd(t, 40, tokens, func() {
		for _, name := range []string{"d1", "d2"} {
			for _, role := range []string{"mixed", "decode"} {
				f.setRole(t, name, role)
				eventually(t, name+" is "+role, func() bool {
					for _, in := range f.pools("g2") {
						if in.Name == name {
							return in.Role == role
						}
					}
					return false
				})
			}
		}
	})
	f.judge(t, "both decode instances", "given other roles", answers, want)
	f.recovers(t, answers)
}

func (f *fleet) setRole(t *testing.T, name, role string) {
	t.Helper()
	f.order(t, name, "role", fmt.Sprintf(`{"role":%q}`, role))
}

// order has a gateway tell an instance something.
func (f *fleet) order(t *testing.T, name, what, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.all["g2"].url+"/admin/v1/pools/"+name+"/"+what, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+f.admin)
	resp, err := f.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s of %s: %d %s", what, name, resp.StatusCode, body)
	}
}

// load has n clients ask without a pause. The function that it returns ends
// them after their last answers, each of which must be whole.
func (f *fleet) load(t *testing.T, n int, prompt string, tokens int) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				a := f.askWith(t.Context(), gatewayOf(i), prompt, tokens, true)
				if t.Context().Err() != nil {
					return // the test has failed
				}
				if !a.whole() || len(strings.Fields(a.text)) != tokens {
					t.Errorf("%+v", a)
				}
			}
		})
	}
	end := func() { cancel(); wg.Wait() }
	t.Cleanup(end)
	return end
}

// roleWatch notes what becomes of roles.
type roleWatch struct {
	mu      sync.Mutex
	last    map[string]string
	known   map[string]time.Time // when the last role was surely held
	changes []roleChange
	stop    func()
}

// roleChange came after before and was seen at seen.
type roleChange struct {
	name, role   string
	before, seen time.Time
}

// watchRoles watches until stop is called; each side must have an instance all
// the time.
func watchRoles(t *testing.T, f *fleet) *roleWatch {
	t.Helper()
	w := &roleWatch{last: map[string]string{}, known: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			asked := time.Now()
			list := f.pools("g1")
			if list == nil {
				continue // no answer, which says nothing of roles
			}
			w.take(list, asked)
			if n := w.roles(); n["prefill"] == 0 || n["decode"] == 0 {
				t.Errorf("a side is empty: %v", n)
				return
			}
		}
	}()
	return w
}

// take notes what a gateway has told, that was asked at a time: its newest report of
// an instance may be older.
func (w *roleWatch) take(list []pooled, asked time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, in := range list {
		if old := w.last[in.Name]; old != "" && old != in.Role {
			w.changes = append(w.changes, roleChange{in.Name, in.Role, w.known[in.Name], time.Now()})
		}
		if in.Report != nil {
			w.known[in.Name] = asked.Add(-time.Duration(in.Report.AgeMs) * time.Millisecond)
		}
		w.last[in.Name] = in.Role
	}
}

// roles counts the instances of each role.
func (w *roleWatch) roles() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for _, role := range w.last {
		n[role]++
	}
	return n
}
