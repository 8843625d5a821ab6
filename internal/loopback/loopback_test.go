package loopback

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHost(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:7420": true, "127.9.9.9:1": true, "localhost": true, "LocalHost.:80": true, "[::1]:7420": true, "::1": true,
		"": false, "0.0.0.0": false, "10.0.0.1:7420": false, "evil.example": false, "localhost.evil.example": false,
		"127.0.0.1.evil.example:7420": false, "127.1": false, "[fe80::1]": false,
	} {
		if Host(host) != want {
			t.Errorf("Host(%q) is %v", host, !want)
		}
	}
}

func TestGuard(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	local, everywhere := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4zero}
	for _, tt := range []struct {
		name         string
		addr         net.Addr
		host, origin string
		status       int
	}{
		{"own client", local, "127.0.0.1:7424", "", 200},
		{"rebound name", local, "evil.example", "", 421},
		{"page", local, "127.0.0.1:7424", "https://evil.example", 403},
		{"sandboxed page", local, "localhost", "null", 403},
		{"listener elsewhere", everywhere, "worker-1:7424", "", 200},
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		r.Host = tt.host
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		w := httptest.NewRecorder()
		Guard(tt.addr, ok).ServeHTTP(w, r)
		if w.Code != tt.status {
			t.Errorf("%s: status %d, want %d", tt.name, w.Code, tt.status)
		}
	}
}
