package enroll

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

func TestReadToken(t *testing.T) {
	token, err := tenants.MintJoinToken(tenants.Pin{1})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.Reveal()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, got := range []func() (tenants.JoinToken, error){
		func() (tenants.JoinToken, error) { return ReadToken(token.Reveal(), "") },
		func() (tenants.JoinToken, error) { return ReadToken("", file) },
	} {
		if x, err := got(); err != nil || x.Reveal() != token.Reveal() {
			t.Errorf("read %v, %v", x, err)
		}
	}
	long := filepath.Join(t.TempDir(), "long")
	if err := os.WriteFile(long, make([]byte, maxTokenFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range [][2]string{{"", ""}, {"", file + "x"}, {"", long}, {token.Reveal() + "x", ""}} {
		if _, err := ReadToken(x[0], x[1]); err == nil || strings.Contains(err.Error(), token.Secret.Reveal()) {
			t.Errorf("ReadToken(%q): %v", x[1], err)
		}
	}
}

func TestBase(t *testing.T) {
	if b, err := Base("https://host:7422/x?y"); err != nil || b.String() != "https://host:7422" {
		t.Errorf("%v, %v", b, err)
	}
	for _, text := range []string{"", "host:7422", "http://host", "https://", "https://u:p@host", "https://:1", "::"} {
		if b, err := Base(text); err == nil {
			t.Errorf("%q is %v", text, b)
		}
	}
}

func TestPost(t *testing.T) {
	const refused = `{"error":{"code":"no","message":"not you"}}`
	for _, tt := range []struct {
		status             int
		body               string
		refused, temporary bool
	}{
		{200, `{"a":7}`, false, false}, {201, `{"a":7}`, false, false}, {200, "hello", false, false}, {200, "[]", false, false},
		{401, refused, true, false}, {403, refused, true, false}, {409, refused, true, false},
		{429, "", false, true}, {408, "", false, true}, {503, "", false, true}, {500, "<html>", false, true},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		base, _ := url.Parse(s.URL)
		var out struct{ A int }
		err := Post(t.Context(), s.Client(), base, "/x", struct{}{}, &out)
		if errors.Is(err, ErrRefused) != tt.refused || Temporary(err) != tt.temporary || (err == nil) != (out.A == 7) {
			t.Errorf("%d %s: %v, %+v", tt.status, tt.body, err, out)
		}
		var told *openai.Error
		if tt.refused && (!errors.As(err, &told) || told.Code != "no" || !strings.Contains(err.Error(), "not you")) {
			t.Errorf("told %v", err)
		}
		s.Close()
		if err := Post(t.Context(), s.Client(), base, "/x", struct{}{}, &out); !Temporary(err) {
			t.Errorf("nobody there: %v", err)
		}
	}
	if Temporary(&net.OpError{Op: "remote error", Err: errors.New("bad certificate")}) || !Temporary(context.DeadlineExceeded) ||
		!Temporary(&net.OpError{Op: "read", Err: syscall.ECONNRESET}) || !Temporary(fmt.Errorf("read answer: %w", io.ErrUnexpectedEOF)) {
		t.Error("what is temporary")
	}
}

// What is posted goes to no other place than the one that was asked.
func TestPostFollowsNoRedirect(t *testing.T) {
	asked := 0
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	base, _ := url.Parse(s.URL)
	c := Client(s.Client().Transport.(*http.Transport).TLSClientConfig)
	defer c.CloseIdleConnections()
	if err := Post(t.Context(), c, base, "/x", struct{}{}, &struct{}{}); !Temporary(err) || asked != 1 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(200, []byte(`{"a":7}`))
	f.Add(429, []byte(`{"error":{"message":"later"}}`))
	f.Add(500, []byte(`{"error":"x"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		var out struct{ A int }
		err := decode("cloud", status, body, &out)
		if (err == nil) != (status/100 == 2 && json.Unmarshal(body, &out) == nil) {
			t.Errorf("%d %q: %v", status, body, err)
		}
		if errors.Is(err, ErrRefused) && (status/100 != 4 || Temporary(err)) {
			t.Errorf("%d is refused: %v", status, err)
		}
	})
}

func TestCheckCA(t *testing.T) {
	a, err := pki.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	leaf, _, err := a.IssuePEM(pki.Spec{Peer: pki.Peer{Role: pki.RoleWorker, Name: "w"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckCA(string(a.CertPEM()), a.Pin()); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		pem string
		pin tenants.Pin
	}{{"", a.Pin()}, {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", a.Pin()}, {string(leaf), a.Pin()}, {string(a.CertPEM()), tenants.Pin{1}}} {
		if CheckCA(tt.pem, tt.pin) == nil {
			t.Errorf("taken with pin %s: %s", tt.pin, tt.pem)
		}
	}
}
