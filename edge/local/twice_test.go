package local_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/contract"
)

// TestSaidTwice: what a request says twice, or of weir in other capitals, is
// refused by name before any model is asked: a local-only that one reader sees and
// another does not must not leave the node.
func TestSaidTwice(t *testing.T) {
	n := startNode(t, nil)
	for more, param := range map[string]string{
		`,"weir":{"privacy":"local-only","privacy":"any"}`:        "weir.privacy",
		`,"weir":{"privacy":"any","privacy":"local-only"}`:        "weir.privacy",
		`,"weir":{"privacy":"local-only","priv\u0061cy":"any"}`:   "weir.privacy",
		`,"weir":{"privacy":"local-only"},"weir":{}`:              "weir",
		`,"weir":{"privacy":"local-only"},"weir":null`:            "weir",
		`,"weir":{"privacy":"local-only","Privacy":"any"}`:        "weir.Privacy",
		`,"Weir":{"privacy":"local-only"}`:                        "Weir",
		`,"stream":true,"stream":false`:                           "stream",
		`,"response_format":{"type":"json_object","type":"text"}`: "response_format.type",
	} {
		n.refuses(more, nil, param)
	}
	for _, name := range []string{contract.HeaderMode, contract.HeaderPrivacy, contract.HeaderSLO, contract.HeaderDeadline,
		contract.HeaderMaxCost, contract.HeaderSession, contract.HeaderExplain, contract.HeaderIdempotency} {
		for _, values := range [][]string{{"", "local-only"}, {"local-only", ""}, {"", ""}} {
			n.refuses("", http.Header{name: values}, name)
		}
	}
	if len(n.cloud.Seen()) != 0 || len(n.worker.Seen()) != 0 {
		t.Error("a refused request reached a model")
	}
}

// refuses sends a chat that must be a 400 which names param.
func (n *node) refuses(more string, header http.Header, param string) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodPost, n.url+"/v1/chat/completions", strings.NewReader(`{"model":"auto",`+hello+more+`}`))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+n.cloud.Key.Reveal())
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Error struct{ Param string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		n.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusBadRequest || got.Error.Param != param {
		n.t.Errorf("%s %v: %d naming %q, want 400 naming %q", more, header, resp.StatusCode, got.Error.Param, param)
	}
}
