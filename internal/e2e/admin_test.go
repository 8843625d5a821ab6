package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testproc"
)

// weir runs a command of the real binary against the system and returns its
// standard output.
func (s *system) weir(t *testing.T, line ...string) string {
	t.Helper()
	bin, err := testproc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, append(line, "--ready-file", filepath.Join(s.DataDir, "ready.json"))...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("weir %s: %v: %s", strings.Join(line, " "), err, errs.String())
	}
	return out.String()
}

// object runs a command with --json and returns the members of its answer.
func (s *system) object(t *testing.T, line string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(s.weir(t, append(strings.Fields(line), "--json")...)), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func getWith(t *testing.T, url, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestOperatorsDay goes through the commands of an operator against real
// processes: tenant, key, limit, use, usage, rotation, suspension, audit.
func TestOperatorsDay(t *testing.T) {
	s := running(t)
	name := fmt.Sprint("day-", time.Now().UnixNano())
	tenant := fmt.Sprint(s.object(t, "tenants create --name "+name)["id"])
	made := s.object(t, "keys create --name app --tenant-id "+tenant)
	key, keyID := fmt.Sprint(made["key"]), fmt.Sprint(made["id"])
	s.object(t, "quotas create --kind requests --window day --limit 2 --tenant-id "+tenant)

	ask := func(key string) int {
		status, _, _ := post(t, s.CloudURL, key, chatBody("hub-cloud", lightPrompt, `,"max_tokens":4`))
		return status
	}
	eventually(t, "the key and its limit are known", time.Minute, func() bool {
		_, body := getWith(t, s.CloudURL+"/v1/usage", key)
		return strings.Contains(body, `"kind":"requests"`)
	})
	if first := ask(key); first != 200 {
		t.Fatalf("the first request: %d", first)
	}
	eventually(t, "the limit holds", time.Minute, func() bool { return ask(key) == 429 })
	var u map[string]any
	defer func() {
		if t.Failed() {
			t.Logf("last usage: %v", u)
		}
	}()
	eventually(t, "usage shows both requests", time.Minute, func() bool {
		u = s.object(t, "usage --tenant-id "+tenant+" --outcome ok --limit 10")
		totals, _ := u["totals"].(map[string]any)
		rows, _ := u["rows"].([]any)
		return totals["requests"] == 2.0 && len(rows) == 2
	})
	status, body := getWith(t, s.CloudURL+"/v1/usage", key)
	var own struct {
		Limits []struct{ Used, Remaining, Limit int64 }
	}
	if err := json.Unmarshal([]byte(body), &own); err != nil || status != 200 || len(own.Limits) != 1 || own.Limits[0].Used != 2 || own.Limits[0].Remaining != 0 {
		t.Errorf("own usage %d %s", status, body)
	}
	if status, body = getWith(t, s.CloudURL+"/v1/usage?format=csv", key); status != 200 || strings.Count(body, ",ok,") != 2 {
		t.Errorf("own CSV %d %s", status, body)
	}

	next := fmt.Sprint(s.object(t, "keys rotate "+keyID+" --grace-seconds 60")["key"])
	listing := func(key string) int { status, _ := getWith(t, s.CloudURL+"/v1/models", key); return status }
	eventually(t, "both secrets are good", time.Minute, func() bool { return listing(next) == 200 && listing(key) == 200 })
	s.object(t, "tenants update "+tenant+" --state suspended")
	eventually(t, "the suspension holds", time.Minute, func() bool { return listing(next) == 403 })
	if out := s.weir(t, "audit", "list", "--tenant-id", tenant); !strings.Contains(out, "tenant.update") || !strings.Contains(out, "key.rotate") {
		t.Errorf("audit:\n%s", out)
	}
	if out := s.weir(t, "usage", "--tenant-id", tenant); !strings.Contains(out, "hub-cloud") {
		t.Errorf("usage:\n%s", out)
	}
}
