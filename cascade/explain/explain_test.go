package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/internal/cli"
)

func call(t *testing.T, key string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(name string) string {
		if name == "WEIR_API_KEY" {
			return key
		}
		return ""
	}}
	code = cli.Main(context.Background(), env, []cli.Command{Command()}, append([]string{"explain"}, args...))
	return code, out.String(), errs.String()
}

func TestExplainByNode(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer wk_1_s":
			w.WriteHeader(http.StatusUnauthorized)
			w.Write([]byte(`{"error":{"message":"bad key"}}`))
		case r.URL.Path != "/v1/weir/requests/abc":
			w.WriteHeader(http.StatusNotFound)
			w.Write([]byte("nothing here"))
		default:
			w.Write([]byte(`{"id":"abc","weir":{"reason":"confident"}}`))
		}
	}))
	defer srv.Close()
	if code, out, errs := call(t, "wk_1_s", "abc", "--url", srv.URL); code != 0 || !strings.Contains(out, `"reason": "confident"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	for name, tt := range map[string]struct {
		key  string
		args []string
		code int
		want string
	}{
		"wrong key":  {"wk_1_x", []string{"abc", "--url", srv.URL}, 1, "bad key"},
		"unknown":    {"wk_1_s", []string{"../abc", "--url", srv.URL}, 1, "nothing here"},
		"no key":     {"", []string{"abc", "--url", srv.URL}, 1, "WEIR_API_KEY"},
		"no request": {"wk_1_s", nil, 2, "X-Request-Id"},
	} {
		code, _, errs := call(t, tt.key, tt.args...)
		if code != tt.code || !strings.Contains(errs, tt.want) || (tt.key != "" && strings.Contains(errs, tt.key)) {
			t.Errorf("%s: exit %d: %s", name, code, errs)
		}
	}
}

func TestExplainByLog(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	one := 1.0
	for _, r := range []journal.Record{{Kind: journal.KindDecision, Request: "abc", Tier: "edge", Reason: "offline"},
		{Kind: journal.KindLabel, Request: "abc", LabelKind: journal.LabelAgreement, Edge: &one, Propensity: .02},
		{Kind: journal.KindLabel, Request: "abc", LabelKind: journal.LabelFeedback, Edge: &one}} {
		if _, err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := call(t, "", "abc", "--log", dir); code != 0 || !strings.Contains(out, `"offline"`) || !strings.Contains(out, `"propensity": 0.02`) || !strings.Contains(out, `"feedback"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, _, errs := call(t, "", "xyz", "--log", dir); code != 1 || !strings.Contains(errs, "not in the log") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// A request that the edge node does not know was asked of the cloud itself.
func TestExplainByTheGateway(t *testing.T) {
	edge := httptest.NewServer(http.NotFoundHandler())
	defer edge.Close()
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/weir/requests/abc" || r.Header.Get("Authorization") != "Bearer wk_1_s" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Write([]byte(`{"operation_id":"abc","attempts":[{"pool":"small","judged":{"kept":true}}]}`))
	}))
	defer cloud.Close()
	ready := filepath.Join(t.TempDir(), "ready.json")
	runs := func(edgeURL, cloudURL string) {
		raw, err := json.Marshal(map[string]string{"edge_url": edgeURL, "cloud_url": cloudURL, "app_key": "wk_1_s"})
		if err == nil {
			err = os.WriteFile(ready, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	runs(edge.URL, cloud.URL)
	if code, out, errs := call(t, "", "abc", "--ready-file", ready); code != 0 || !strings.Contains(out, `"pool": "small"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, _, errs := call(t, "", "xyz", "--ready-file", ready); code != 1 || !strings.Contains(errs, "404") {
		t.Errorf("exit %d: %s", code, errs)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, tt := range []struct {
		edge, cloud string
		want, not   []string
	}{
		{edge.URL, gone.URL, []string{edge.URL + ": the node answers 404", gone.URL + ": "}, nil}, // the gateway is down, and the edge knows nothing
		{edge.URL, "", []string{"404"}, []string{"scheme"}},                                       // of an older system
	} {
		runs(tt.edge, tt.cloud)
		code, _, errs := call(t, "", "abc", "--ready-file", ready)
		for _, w := range tt.want {
			if code != 1 || !strings.Contains(errs, w) {
				t.Errorf("exit %d: %s, want %s", code, errs, w)
			}
		}
		for _, w := range tt.not {
			if strings.Contains(errs, w) {
				t.Errorf("%s", errs)
			}
		}
	}
	runs(gone.URL, cloud.URL)
	if code, out, errs := call(t, "", "abc", "--ready-file", ready); code != 0 || !strings.Contains(out, `"pool": "small"`) {
		t.Errorf("the edge is down, exit %d: %s%s", code, out, errs)
	}
}
