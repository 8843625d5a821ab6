// Package loopback keeps web pages away from HTTP listeners that trust whoever
// is on this machine. A browser is on this machine too: a page whose host name
// is made to resolve to 127.0.0.1 (DNS rebinding) may call every loopback port,
// and only the Host and Origin headers give it away.
package loopback

import (
	"net"
	"net/http"
	"strings"

	"github.com/weirhq/weir/internal/openai"
)

// Host reports whether a Host header, with or without a port, names this
// machine by a loopback name or address.
func Host(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Guard refuses what web pages send (421 for a foreign Host, 403 for any
// Origin) where next is served on a loopback address. Elsewhere it returns next
// itself: such listeners have other guards.
func Guard(addr net.Addr, next http.Handler) http.Handler {
	if tcp, ok := addr.(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !Host(r.Host):
			refuse(w, http.StatusMisdirectedRequest, "Host", "this host name is not served here: use 127.0.0.1 or localhost")
		case r.Header.Get("Origin") != "":
			refuse(w, http.StatusForbidden, "Origin", "web pages are not served here")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func refuse(w http.ResponseWriter, status int, header, why string) {
	e := &openai.Error{Status: status, Type: openai.TypePermission, Code: openai.CodeForbiddenOrigin, Param: header, Message: why, NoRetry: true}
	e.Write(w, nil)
}
