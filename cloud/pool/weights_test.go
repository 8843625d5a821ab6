package pool

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/cloud/roles"
)

// ofWeights is the health of a worker whose model has the weights.
func ofWeights(w string) health {
	h := health{Status: "ok", Epoch: "e"}
	if w != "" {
		h.Fingerprint = fmt.Appendf(nil, `{"weights":%q,"runner":"r","kv_format":"k"}`, w)
	}
	return h
}

// TestHeirOfTheSameWeights: no stream leaves an instance, whatever the cause, for
// one that is known to have other weights.
func TestHeirOfTheSameWeights(t *testing.T) {
	for _, tt := range []struct{ a, b, c, heir string }{
		{"A", "A", "B", "b"}, {"A", "B", "A", "c"}, {"A", "B", "B", ""}, {"A", "", "B", "b"}, {"", "B", "B", "b"},
	} {
		p := still(t, members("a", "b", "c")...)
		p.opts.Client = (&orders{status: http.StatusOK}).client()
		p.opts.Moves = &roles.MoveParams{}
		for name, w := range map[string]string{"a": tt.a, "b": tt.b, "c": tt.c} {
			p.noteHealthy(p.find(name), ofWeights(w))
		}
		m := crowded("a", 1, 1)
		m.Failing = "memory"
		p.told(t, "a", m)
		p.told(t, "b", crowded("b", 0, 1))
		p.told(t, "c", crowded("c", 0, 1))
		p.crowd("a", 1)
		p.judge()
		heir := ""
		for _, m := range p.toMove() {
			heir = m.leg.heir.Name
		}
		if heir != tt.heir {
			t.Errorf("weights %q, %q, %q: the stream goes to %q, want %q", tt.a, tt.b, tt.c, heir, tt.heir)
		}
	}
}

// TestSplitPool: a pool of several weights is warned of once, and shown until it
// is over.
func TestSplitPool(t *testing.T) {
	var log bytes.Buffer
	p := still(t, append(members("a", "b"), Member{Name: "x", URL: "http://x", Model: "other"})...)
	p.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	is := func(when string, b string, warned bool, lines int) {
		t.Helper()
		for name, w := range map[string]string{"a": "A", "b": b, "x": "X"} {
			p.noteHealthy(p.find(name), ofWeights(w))
		}
		for range 3 {
			p.weigh()
		}
		for _, name := range []string{"a", "b"} {
			if got := status(p, name).Warning; (got != "") != warned {
				t.Errorf("%s: %s is warned of: %q", when, name, got)
			}
		}
		if got := strings.Count(log.String(), splitWarning); got != lines || status(p, "x").Warning != "" || status(p, "a").Weights != "A" {
			t.Errorf("%s: %d warnings, want %d; %+v", when, got, lines, status(p, "x"))
		}
	}
	is("unknown", "", false, 0)
	is("alike", "A", false, 0)
	is("other weights", "B", true, 1)
	is("alike again", "A", false, 1)
	is("a second time", "C", true, 2)
}
