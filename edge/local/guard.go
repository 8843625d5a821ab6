package local

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/openai"
)

// guarded refuses what a web page on another site could send to a loopback
// port: a foreign Host (DNS rebinding) and an Origin that is not allowed.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		openai.BoundBody(w, r, s.opt.BodyTime)
		h := w.Header()
		contract.ExposeHeaders(h)
		h.Set("X-Content-Type-Options", "nosniff")
		if !s.hostAllowed(r.Host) {
			s.refuse(w, r, &openai.Error{Status: http.StatusMisdirectedRequest, Type: openai.TypeInvalidRequest, Code: openai.CodeForbiddenOrigin,
				Param: "Host", Message: "this host name is not served here: use 127.0.0.1 or localhost, or set edge.allowed_hosts", NoRetry: true})
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			h.Add("Vary", "Origin")
			if !slices.Contains(s.opt.AllowedOrigins, origin) {
				s.refuse(w, r, &openai.Error{Status: http.StatusForbidden, Type: openai.TypePermission, Code: openai.CodeForbiddenOrigin,
					Param: "Origin", Message: "this origin may not call the edge node: add it to edge.allowed_origins", NoRetry: true})
				return
			}
			h.Set("Access-Control-Allow-Origin", origin)
			if r.Method == http.MethodOptions {
				preflight(w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func preflight(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT")
	h.Set("Access-Control-Allow-Headers", strings.Join([]string{
		"Authorization", "Content-Type", contract.HeaderRequestID,
		contract.HeaderMode, contract.HeaderPrivacy, contract.HeaderSLO, contract.HeaderDeadline, contract.HeaderMaxCost,
		contract.HeaderSession, contract.HeaderExplain, contract.HeaderIdempotency,
	}, ", "))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

// hostAllowed accepts loopback names and addresses, and the configured hosts.
func (s *Server) hostAllowed(hostport string) bool {
	if loopback.Host(hostport) {
		return true
	}
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	return slices.Contains(s.opt.AllowedHosts, strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), ".")))
}

// refuse answers a request that never became a call of a model.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, e *openai.Error) {
	op := contract.NewID()
	w.Header().Set(contract.HeaderRequestID, op)
	s.opt.Log.Info("request refused", "operation", op, "method", r.Method, "status", e.Status, "code", e.Code, "param", e.Param)
	s.metrics.refused.WithLabelValues(e.Code).Inc()
	e.Write(w, &contract.Result{})
}

func (s *Server) serveUnknown(w http.ResponseWriter, r *http.Request) {
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/models"} {
		if r.URL.Path == path {
			s.refuse(w, r, &openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidValue,
				Message: fmt.Sprintf("method %s is not served on %s", r.Method, path), NoRetry: true})
			return
		}
	}
	s.refuse(w, r, &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "unknown_url", NoRetry: true,
		Message: "this path is not served by an edge node: see POST /v1/chat/completions and GET /v1/models"})
}
