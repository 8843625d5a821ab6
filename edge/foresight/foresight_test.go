package foresight

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/prerouter"
	"github.com/weirhq/weir/edge/internal/embedtest"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// embedder asks the test server with all the time that a slow machine needs.
func embedder(t *testing.T, s *embedtest.Server) *Embedder {
	t.Helper()
	e, err := NewEmbedder(EmbedderConfig{URL: s.Endpoint(), Model: "m"}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	e.opt.Timeout = time.Minute // more than a configuration may say
	t.Cleanup(e.Close)
	return e
}

func open(t *testing.T, dir string, e *Embedder) *Foresight {
	t.Helper()
	f, err := Open(Options{Dir: dir, Embedder: e, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// teach shows verdicts on two kinds of prompts: rivers are let over.
func teach(f *Foresight, model string) {
	for i := range after + 40 {
		v, text := Verdict{Right: .95, Weight: 1}, "tell me of the lamp"
		if i%2 == 0 {
			v, text = Verdict{Escalated: true, Right: 0, Weight: 1}, "tell me of the river"
		}
		l := f.Look("c", model, prerouter.Prompt{Text: text})
		l.embedded()
		l.Learn(v)
		l.End()
	}
}

func guess(f *Foresight, model, text string) (escalates, right float64, known [2]bool) {
	l := f.Look("c", model, prerouter.Prompt{Text: text})
	defer l.End()
	escalates, known[0] = l.Escalates()
	right, known[1] = l.Right()
	return escalates, right, known
}

// What was learned outlives a restart, of the words as of the vectors, and belongs
// to one model of the edge and one of the embedder.
func TestRestart(t *testing.T) {
	dir, server := t.TempDir(), embedtest.Start(t)
	for name, e := range map[string]*Embedder{"words": nil, "vectors": embedder(t, server)} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(dir, name)
			f := open(t, dir, e)
			teach(f, "weights")
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := f.Keep(ctx, time.Hour); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				river, right, known := guess(f, "weights", "the river")
				lamp, _, _ := guess(f, "weights", "the lamp")
				if river < .6 || lamp > .4 || known != [2]bool{true, e != nil} || e != nil && right > .3 {
					t.Errorf("river %v (right %v), lamp %v, known %v", river, right, lamp, known)
				}
				f = open(t, dir, e)
			}
			if _, _, known := guess(f, "others", "the river"); known != [2]bool{} {
				t.Error("another model is judged by this one's verdicts")
			}
			other := e
			if e != nil {
				other = &Embedder{opt: e.opt, http: e.http, results: e.results}
				other.opt.Model = "another"
			}
			if _, _, known := guess(open(t, dir, other), "weights", "the river"); known != [2]bool{true, false} {
				t.Errorf("with another embedder: %v", known)
			}
		})
	}
}

func TestDamagedSnapshot(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state.snap"), []byte("not a snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, known := guess(open(t, dir, nil), "weights", "x"); known[0] {
		t.Error("a damaged snapshot is believed")
	}
}

// An endpoint that is slow or down costs at most the timeout, is counted, and is
// left alone after a while.
func TestEmbedderFails(t *testing.T) {
	server := embedtest.Start(t)
	gate := make(chan struct{})
	defer close(gate)
	e := embedder(t, server)
	f := open(t, "", e)
	count := func(o Outcome) int { return counted(t, e, o) }

	e.opt.Timeout = 20 * time.Millisecond
	server.Hang(gate)
	if _, _, known := guess(f, "w", "x"); known[0] || count(OutcomeTimeout) != 1 {
		t.Errorf("slow: %d timeouts", count(OutcomeTimeout))
	}
	server.Hang(nil)
	server.Fail(true)
	e.opt.Timeout = time.Minute
	for range 8 {
		guess(f, "w", "x")
	}
	if count(OutcomeError) == 0 || count(OutcomeSkipped) == 0 || count(OutcomeError)+count(OutcomeSkipped) != 8 {
		t.Errorf("%d errors, %d skipped", count(OutcomeError), count(OutcomeSkipped))
	}
}

// An embedding that is called off says nothing of its endpoint: it neither closes
// the breaker nor keeps the probe.
func TestCalledOff(t *testing.T) {
	server := embedtest.Start(t)
	e := embedder(t, server)
	e.breaker = control.Breaker{First: time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	server.Fail(true)
	for !e.breaker.Open(time.Now().Add(-time.Hour)) {
		e.embed(t.Context(), "x")
		e.embed(ctx, "x")
	}
	seen, _ := server.Seen()
	if len(seen) > 4 {
		t.Errorf("%d failures to open the breaker", len(seen))
	}
	server.Fail(false)
	for deadline := time.Now().Add(30 * time.Second); ; {
		e.embed(ctx, "x") // the probe, once the pause is over
		if !e.breaker.Open(time.Now().Add(-time.Hour)) {
			t.Fatal("closed by what was called off")
		}
		if _, o := e.embed(t.Context(), "x"); o == OutcomeOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the probe is kept")
		}
	}
}

// counted reads the metric.
func counted(t *testing.T, e *Embedder, o Outcome) int {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(e.results)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if m.Label[0].GetValue() == string(o) {
				return int(m.Counter.GetValue())
			}
		}
	}
	return 0
}

func TestEmbedderKey(t *testing.T) {
	server, file := embedtest.Start(t), filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := NewEmbedder(EmbedderConfig{URL: server.Endpoint(), Model: "m", KeyFile: file, Timeout: 2 * time.Second}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	v, o := e.embed(t.Context(), strings.Repeat("é", maxInput))
	texts, keys := server.Seen()
	if len(v) != embedtest.Dimension || o != OutcomeOK || keys[0] != "Bearer secret" || len(texts[0]) != maxInput {
		t.Errorf("%v %v, key %q, %d bytes", v, o, keys, len(texts[0]))
	}
}

func TestEmbedderConfig(t *testing.T) {
	for _, tt := range []struct {
		c    EmbedderConfig
		says string
	}{
		{EmbedderConfig{}, ""},
		{EmbedderConfig{URL: "https://api.example/v1/embeddings", Model: "m"}, ""},
		{EmbedderConfig{URL: "http://127.0.0.1:11434/v1/embeddings", Model: "m"}, ""},
		{EmbedderConfig{URL: "http://api.example/v1/embeddings", Model: "m"}, "unprotected"},
		{EmbedderConfig{URL: "https://api.example/v1", Model: "m"}, "embedder.url"},
		{EmbedderConfig{URL: "https://u:p@api.example/v1/embeddings", Model: "m"}, "without user"},
		{EmbedderConfig{URL: "https://api.example/v1/embeddings"}, "embedder.model"},
		{EmbedderConfig{Model: "m"}, "embedder.url"},
		{EmbedderConfig{URL: "https://api.example/v1/embeddings", Model: "m", Timeout: time.Minute}, "embedder.timeout"},
	} {
		err := tt.c.Validate()
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want %q", tt.c, err, tt.says)
		}
	}
}

func FuzzEmbedding(f *testing.F) {
	for _, s := range []string{`{"data":[{"embedding":[1,2]}]}`, `{"data":[]}`, `{"data":[{"embedding":[1e308,1e308]}]}`, `[]`, `{"data":[{"embedding":[0]}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := parseEmbedding(raw)
		if err != nil {
			return
		}
		s := prerouter.NewSimilar(len(v))
		s.Observe(v, prerouter.Prediction{Edge: math.NaN(), Benefit: 1})
		if s.Len() != 1 {
			t.Errorf("the vector of %q is not remembered", bytes.TrimSpace(raw))
		}
	})
}
