package fake

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestScriptText(t *testing.T) {
	for _, s := range []Script{{Fault: FaultStall, After: 3, Leg: Decode}, {Fault: FaultBusy, Every: 2}, {Fault: FaultStatus500, Times: 4},
		{Fault: FaultErrorEvent, After: 1, Leg: Whole, Every: 3, Times: 7}} {
		got, err := ParseScript(s.String())
		if err != nil || got != s {
			t.Errorf("%s reads as %+v (%v), want %+v", s, got, err, s)
		}
	}
	for _, bad := range []string{"", "boom", "stall@", "stall@x", "stall:nobody", "busy/-1", "busy?1", "busy/99999999999"} {
		if s, err := ParseScript(bad); err == nil {
			t.Errorf("%q reads as %+v", bad, s)
		}
	}
}

func FuzzParseScript(f *testing.F) {
	f.Add("stall@3:decode")
	f.Add("error-event/2x1")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScript(text)
		if err != nil {
			return
		}
		if again, err := ParseScript(s.String()); err != nil || again != s {
			t.Errorf("%q: %+v is not what its text %q says (%v)", text, s, s.String(), err)
		}
	})
}

// TestFaults looks at what a client sees of each fault, in a stream and in a
// whole answer, before and after two tokens.
func TestFaults(t *testing.T) {
	wants := []struct {
		fault        Fault
		status       int // 0: no head
		stream, text string
		broken       bool // reading fails
		never        bool // only at the head
	}{
		{FaultReset, 0, "", "", true, false},
		{FaultCut, 0, "", "", true, false},
		{FaultMalformed, 200, `{"choices":[}`, `{"choices":[}`, false, false},
		{FaultErrorEvent, 200, "EngineCore", "EngineCore", false, false},
		{FaultTruncated, 200, `,"choi`, `,"choi`, false, false},
		{FaultLongLine, 200, strings.Repeat("x", 4<<20+1), strings.Repeat("x", 4<<20+1), false, false},
		{FaultStatus500, 500, "Internal server error", "Internal server error", false, true},
		{FaultBusy, 503, "overloaded", "overloaded", false, true},
		{FaultRateLimit, 429, "too many", "too many", false, true},
		{FaultContentType, 200, "<html>", "<html>", false, true},
		{FaultEmpty, 200, "", "", false, true},
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, want := range wants {
		for _, after := range []int{0, 2} {
			if want.never && after > 0 {
				continue
			}
			for _, stream := range []bool{false, true} {
				s := Script{Fault: want.fault, After: after}
				t.Run(s.String()+map[bool]string{true: ", streamed"}[stream], func(t *testing.T) {
					e, srv := serve(t, Options{Faults: []Script{s}})
					body := `{` + question + map[bool]string{true: `,"stream":true`}[stream] + `}`
					resp, err := client.Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
					var data []byte
					if err == nil {
						data, err = io.ReadAll(resp.Body)
						resp.Body.Close()
						if want.status != 0 && resp.StatusCode != want.status {
							t.Errorf("status %d, want %d", resp.StatusCode, want.status)
						}
					}
					if (err != nil) != want.broken {
						t.Errorf("error %v, broken %v", err, want.broken)
					}
					text := want.text
					if stream {
						text = want.stream
						if n := strings.Count(string(data), `"finish_reason":null`); after > 0 && n != after+1 {
							t.Errorf("%d events before the fault, want a role and %d tokens", n, after)
						}
					}
					if !strings.Contains(string(data), text) || want.fault != FaultErrorEvent && strings.Contains(string(data), "[DONE]") {
						t.Errorf("answer %.300q", data)
					}
					eventually(t, "freed", func() bool { return e.InFlight() == 0 && e.Held() == 0 })
				})
			}
		}
	}
}

func TestFlappingAndTimes(t *testing.T) {
	e, s := serve(t, Options{Faults: []Script{{Fault: FaultBusy, Every: 2, Times: 2}}})
	var got []int
	ask := func() {
		status, _ := post(t, s.URL+"/v1/chat/completions", `{`+question+`}`)
		got = append(got, status)
	}
	for range 6 {
		ask()
	}
	resp, err := http.NewRequest(http.MethodPut, s.URL+"/fake/faults", strings.NewReader("500 busy"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := http.DefaultClient.Do(resp); err != nil || r.StatusCode != 200 {
		t.Fatalf("put faults: %v %v", r, err)
	}
	ask()
	e.SetFaults()
	ask()
	want := []int{200, 503, 200, 503, 200, 200, 500, 200}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("statuses %v, want %v", got, want)
		}
	}
}

func TestStallSlowAndNoDone(t *testing.T) {
	e, s := serve(t, Options{Delay: time.Millisecond, Faults: []Script{{Fault: FaultSlow, Times: 1}, {Fault: FaultNoDone, Times: 1}, {Fault: FaultStall, After: 1}}})
	stream := func(client *http.Client) (string, error) {
		resp, err := client.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{`+question+`,"stream":true}`))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		return string(data), err
	}
	if text, err := stream(http.DefaultClient); err != nil || !strings.HasSuffix(text, "[DONE]\n\n") {
		t.Errorf("slow: %v %s", err, text)
	}
	if text, err := stream(http.DefaultClient); err != nil || strings.Contains(text, "[DONE]") || !strings.Contains(text, `"finish_reason":"stop"`) {
		t.Errorf("no done: %v %s", err, text)
	}
	if text, err := stream(&http.Client{Timeout: 200 * time.Millisecond}); err == nil {
		t.Errorf("a stalled stream ended: %s", text)
	}
	eventually(t, "freed", func() bool { return e.InFlight() == 0 })
}

func TestLeaseAndTransferFaults(t *testing.T) {
	for _, s := range []Script{{Fault: FaultLease, Leg: Prefill}, {Fault: FaultTransfer, Leg: Decode}} {
		p, ps := serve(t, Options{Faults: []Script{s}})
		_, ds := serve(t, Options{Faults: []Script{s}})
		if status, _ := pd(t, ps, ds, func(map[string]any) {}); status != 500 {
			t.Errorf("%s: decode leg answered %d, want 500", s, status)
		}
		if expired := strings.Contains(scrape(t, ps.URL), "kv_expired_reqs_total{engine=\"0\",model_name=\"fake\"} 1"); expired != (s.Fault == FaultLease) {
			t.Errorf("%s: expired %v", s, expired)
		}
		if s.Fault == FaultLease && p.Held() != 0 {
			t.Errorf("%d blocks held after the lease", p.Held())
		}
	}
}

// TestRefusalsLeaveTheBlocks: a decode leg that is refused has fetched nothing,
// so that another can; one that fails later has.
func TestRefusalsLeaveTheBlocks(t *testing.T) {
	for fault, left := range map[Fault]bool{FaultBusy: true, FaultRateLimit: true, FaultStatus500: false} {
		p, ps := serve(t, Options{})
		_, ds := serve(t, Options{Faults: []Script{{Fault: fault, Leg: Decode}}})
		if status, _ := pd(t, ps, ds, func(map[string]any) {}); status < 400 {
			t.Errorf("%s: decode leg answered %d", fault, status)
		}
		if got := p.Held() > 0; got != left {
			t.Errorf("%s: blocks left %v, want %v", fault, got, left)
		}
	}
}

func TestOldMetrics(t *testing.T) {
	_, s := serve(t, Options{OldMetrics: true})
	got := scrape(t, s.URL)
	for _, want := range []string{`vllm:gpu_cache_usage_perc{model_name="fake"} 0`, `vllm:prompt_tokens{model_name="fake"} 0`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}

func TestDoor(t *testing.T) {
	d, err := NewDoor()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(New(Options{}))
	s.Listener.Close()
	s.Listener = d
	s.Start()
	t.Cleanup(s.Close)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	knock := func() error {
		resp, err := client.Get("http://" + d.Addr().String() + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := knock(); err != nil {
		t.Fatal(err)
	}
	d.Shut()
	if err := knock(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a shut door: %v", err)
	}
	if err := d.Open(); err != nil {
		t.Fatal(err)
	}
	if err := knock(); err != nil {
		t.Errorf("opened again: %v", err)
	}
}
