package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/tenants"
)

// TestContinuedByTheSameWeights: a stream that breaks off, or that is given away,
// goes on at an instance of the same weights only; where there is none it is cut.
func TestContinuedByTheSameWeights(t *testing.T) {
	for _, moves := range []bool{false, true} {
		for _, tt := range []struct {
			name, b, c string
			at         string // who goes on; "" is nobody
		}{
			{"none has them", "B", "B", ""},
			{"one has them", "B", "A", "c"},
			{"one may have them", "B", "", "c"},
		} {
			t.Run(tt.name+map[bool]string{true: ", given away"}[moves], func(t *testing.T) {
				a, b, c := newInstance(t, "a", "mixed"), newInstance(t, "b", "mixed"), newInstance(t, "c", "mixed")
				a.weights, b.weights, c.weights = "A", tt.b, tt.c
				a.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
					if a.stream(w, r, body, 2); !moves {
						panic(http.ErrAbortHandler)
					}
					_, _ = io.WriteString(w, `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"migrated"}],"weir_migrated":{"weir_resume":{"text":"the light "}}}`+"\n\n")
					return true
				})
				r := newRig(t, func(o *Options) { o.Policy = resuming{"a"} }, a, b, c)
				got := r.chat(t, ask1s)
				ev := events(got.body)
				if n := b.decodes.Load(); n != 0 {
					t.Errorf("other weights were asked %d times", n)
				}
				rows := outcomes(r.ledger(t))
				if tt.at != "" {
					if c.decodes.Load() != 1 || !strings.Contains(got.body, "[DONE]") || len(rows) != 2 || rows[1] != tenants.OutcomeOK {
						t.Errorf("not continued: rows %v, %s", rows, got.body)
					}
					return
				}
				if last := ev[len(ev)-1]; strings.Contains(got.body, "[DONE]") || errorOf(t, last)["code"] != "upstream_truncated" || len(rows) != 1 {
					t.Errorf("rows %v, the stream ends with %s", rows, last)
				}
			})
		}
	}
}

// TestBegunAnewByOtherWeights: what the client has not seen anything of is begun
// by whoever serves the model.
func TestBegunAnewByOtherWeights(t *testing.T) {
	a, b := newInstance(t, "a", "mixed"), newInstance(t, "b", "mixed")
	a.weights, b.weights = "A", "B"
	a.on(a.diesAfter(0))
	r := newRig(t, func(o *Options) { o.Policy = resuming{"a"} }, a, b)
	if got := r.chat(t, ask1s); got.status != 200 || text(t, got.body) != "the light is on" {
		t.Errorf("answer %d %s", got.status, got.body)
	}
}
