package pool

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/contract"
)

// stateful starts a fake that tells its state.
func stateful(t *testing.T, o fake.Options) (*fake.Engine, string) {
	t.Helper()
	o.Weir, o.Model = true, "m"
	e := fake.New(o)
	s := httptest.NewServer(e)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return e, s.URL
}

// TestStateReconcilesTheLedger: a leg counts beside the instance's report until
// the report holds it, and two gateways see each other's work there.
func TestStateReconcilesTheLedger(t *testing.T) {
	e, url := stateful(t, fake.Options{TTFT: time.Hour})
	member := Member{Name: "a", URL: url, Model: "m"}
	p, other := start(t, member), start(t, member)
	knows := func(p *Pool) bool { s := status(p, "a"); return s.Ready && s.Report != nil }
	await(t, "both heard of it", func() bool { return knows(p) && knows(other) })
	s, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
	unseen := func(p *Pool) route.InFlight {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.inst[0].ledger.unseen
	}
	if got := unseen(p); got.Requests != 1 || got.PromptBytes != 100 {
		t.Errorf("unseen at selection: %+v", got)
	}
	req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(contract.HeaderOperation, chat.Operation)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	await(t, "the instance reported it", func() bool { return unseen(p) == (route.InFlight{}) })
	if got := status(p, "a"); got.InFlight.Requests != 1 || got.Report.Running != 1 {
		t.Errorf("after the report %+v", got)
	}
	await(t, "the other gateway saw it", func() bool { s := status(other, "a"); return s.Report != nil && s.Report.Running == 1 })
	if got := status(other, "a").InFlight; got.Requests != 0 {
		t.Errorf("the other gateway's own legs: %+v", got)
	}
	s.Release()
	if got := status(p, "a").InFlight; got != (route.InFlight{}) {
		t.Errorf("after the release %+v", got)
	}
	if !s.Decode.Resumes || e.InFlight() != 1 {
		t.Errorf("leg %+v, %d in flight", s.Decode, e.InFlight())
	}
	client.CloseIdleConnections()
}

// engineFunc answers requests without a network.
type engineFunc func(*http.Request) (status int, body io.Reader)

func (f engineFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := f(r)
	return &http.Response{StatusCode: status, Body: io.NopCloser(body), Request: r}, nil
}

// TestStateIsAskedForWhenAProcessComesUp: not after the wait that fitted what
// was there before, be it one that was down or an engine without such a stream.
func TestStateIsAskedForWhenAProcessComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		engine := engineFunc(func(r *http.Request) (int, io.Reader) {
			up := time.Since(began) > 10*time.Second
			switch health := r.URL.Path == "/health"; {
			case health && up:
				return 200, strings.NewReader(`{"status":"ok","epoch":"e"}`)
			case health:
				return 200, strings.NewReader(`{}`)
			case up:
				return 200, strings.NewReader(`{"full":true,"seq":1,"epoch":"e","role":"mixed","health":"ok"}` + "\n")
			}
			return 404, strings.NewReader("")
		})
		p, err := New(Options{Members: []Member{{Name: "a", URL: "http://h", Model: "m"}}, Client: &http.Client{Transport: engine},
			Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { p.Run(ctx) })
		time.Sleep(10*time.Second + 2*DefaultInterval)
		cancel()
		wg.Wait()
		if !p.inst[0].known.streams {
			t.Errorf("two probes after it came up: %+v", status(p, "a"))
		}
	})
}

// TestStateStreamComesBack: a stream that breaks, gaps or falls silent is
// opened anew, and its report does not count in the meantime.
func TestStateStreamComesBack(t *testing.T) {
	var streams atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			_, _ = io.WriteString(w, `{"status":"ok","epoch":"e"}`)
			return
		}
		first := `{"full":true,"seq":1,"epoch":"e","role":"mixed","health":"ok","requests":[],"running":1}` + "\n"
		_, _ = io.WriteString(w, first)
		switch streams.Add(1) {
		case 1: // breaks
		case 2:
			_, _ = io.WriteString(w, `{"seq":3,"epoch":"e","role":"mixed","health":"ok"}`+"\n")
		case 3:
			_, _ = io.WriteString(w, "{\n")
		default: // silent
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	tr := &http.Transport{}
	p, err := New(Options{Members: []Member{{Name: "a", URL: s.URL, Model: "m"}}, Client: &http.Client{Transport: tr}, Silence: time.Minute,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for want := int64(1); want <= 4; want++ {
		if want == 4 {
			p.opts.Silence = 2 * time.Second
		}
		err := p.subscribe(t.Context(), p.inst[0])
		if err == nil || streams.Load() != want {
			t.Errorf("stream %d: %v", want, err)
		}
		p.lost(p.inst[0])
		if v := p.inst[0].view(); v.Load.At != 0 || !v.Resumes || len(p.inst[0].kick) != 1 {
			t.Errorf("after stream %d: %+v", want, v)
		}
	}
	tr.CloseIdleConnections()
}

func FuzzMessageReader(f *testing.F) {
	f.Add(`{"full":true,"seq":1,"epoch":"e","role":"mixed","keys_added":["00112233445566778899aabbccddeeff"]}` + "\n" + `{"seq":2,"epoch":"e","role":"mixed"}` + "\n")
	f.Add("null\n{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := still(t, Member{Name: "a", URL: "http://h", Model: "m"})
		r := &messageReader{r: bufio.NewReader(strings.NewReader(text))}
		for {
			m, err := r.next()
			if err != nil {
				return
			}
			if p.hear(p.inst[0], m) == nil {
				if s := p.Status()[0]; s.Report.Running < 0 || !s.Role.Valid() {
					t.Errorf("took %+v", s)
				}
			}
		}
	})
}
