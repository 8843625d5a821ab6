package gateway

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// TestClientsMakeNoSeries (requirement 22): what clients type never becomes a
// label, however many names they try; nor do tenants.
func TestClientsMakeNoSeries(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	n := 500
	if os.Getenv("WEIR_SOAK") != "" {
		n = 10_000
	}
	series := func() (int, string) {
		families, err := r.tel.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		count, text := 0, strings.Builder{}
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
				continue
			}
			count += len(f.GetMetric())
			text.WriteString(f.String())
		}
		return count, text.String()
	}
	odd := func(i int) {
		name := fmt.Sprint("typed-", i)
		r.do(t, http.MethodPost, "/v1/chat/completions", r.key, fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}]}`, name))
		r.do(t, http.MethodGet, "/v1/models/"+name, r.key, "")
		r.do(t, http.MethodGet, "/"+name, r.key, "")
	}
	r.chat(t, ask1)
	for i := range 5 {
		odd(i)
	}
	before, _ := series()
	for i := range n {
		odd(i)
	}
	after, text := series()
	if before != after || before == 0 {
		t.Errorf("%d series became %d", before, after)
	}
	if strings.Contains(text, "typed-") || strings.Contains(text, tenantA) {
		t.Error("a client's text or a tenant is a label")
	}
}
