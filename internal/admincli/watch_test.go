package admincli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/cli"
)

// TestWatchGoesOn while a gateway does not answer, but not where it never did.
func TestWatchGoesOn(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, first := range []int{http.StatusOK, http.StatusForbidden} {
		ctx, leave := context.WithCancel(t.Context())
		looks := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			looks++
			w.Header().Set("Content-Type", "application/json")
			switch looks {
			case 1:
				w.WriteHeader(first)
				_, _ = io.WriteString(w, `{"data":[{"name":"p1"}]}`)
			case 2:
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, `{"error":{"message":"going down"}}`)
			case 3:
				_, _ = io.WriteString(w, `{"data":[{"name":"p2"}]}`)
			default:
				leave()
			}
		}))
		var out bytes.Buffer
		env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard, Getenv: func(string) string { return "" }}
		err := shows("pools status", "pools", printPools)(ctx, env, []string{"--watch", "--every", "1ms", "--cloud-url", s.URL, "--admin-token-file", token})
		s.Close()
		if first != http.StatusOK {
			if err == nil || looks != 1 {
				t.Errorf("after %d looks: %v", looks, err)
			}
			continue
		}
		said := out.String()
		if one, down, two := strings.Index(said, "p1"), strings.Index(said, "going down"), strings.Index(said, "p2"); err != nil || one < 0 || down < one || two < down {
			t.Errorf("%v\n%s", err, said)
		}
	}
}
