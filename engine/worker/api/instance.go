package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/weirhq/weir/engine/worker/handoff"
	"github.com/weirhq/weir/internal/openai"
)

// Roles that a worker may have. Any worker serves any request; the role is what
// a gateway routes by.
var Roles = []string{"mixed", "prefill", "decode"}

// What /instance/v1/lease can be asked for.
const (
	leaseRenew   = "renew"
	leaseRelease = "release"
)

// maxOrder is the longest body of a call under /instance/v1, in bytes.
const maxOrder = 4096

// readOrder reads the small JSON object of a gateway's call, which may be a newer
// one's: members that it does not know are passed over. An empty body leaves v as
// it is.
func readOrder(r *http.Request, v any) error {
	data, err := orderBody(r)
	if err == nil && len(data) > 0 && json.Unmarshal(data, v) != nil {
		return notTheObject()
	}
	return err
}

// readExact is readOrder of a call that people make too: a member that it does not
// know is a slip.
func readExact(r *http.Request, v any) error {
	data, err := orderBody(r)
	if err != nil || len(data) == 0 {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if d.Decode(v) != nil {
		return notTheObject()
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return notTheObject()
	}
	return nil
}

func orderBody(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxOrder+1))
	if err != nil || len(data) > maxOrder {
		return nil, openai.BadRequest("", openai.CodeInvalidJSON, "the body must have at most %d bytes", maxOrder)
	}
	return data, nil
}

func notTheObject() error {
	return openai.BadRequest("", openai.CodeInvalidJSON, "the body is not the JSON object that this call takes")
}

func (s *Server) setRole(w http.ResponseWriter, r *http.Request) {
	var o struct {
		Role string `json:"role"`
	}
	if err := readExact(r, &o); err != nil {
		openai.AsError(err).Write(w, nil)
		return
	}
	if !slices.Contains(Roles, o.Role) {
		openai.BadRequest("role", openai.CodeInvalidValue, "role must be mixed, prefill or decode").Write(w, nil)
		return
	}
	if was := s.role.Swap(&o.Role); *was != o.Role {
		s.log.Info("role changed", "from", *was, "to", o.Role)
	}
	s.touch()
	writeJSON(w, http.StatusOK, o)
}

func (s *Server) setDraining(w http.ResponseWriter, r *http.Request) {
	o := struct {
		Draining bool `json:"draining"`
		Requests int  `json:"requests"` // in flight
	}{Draining: true}
	if err := readExact(r, &o); err != nil {
		openai.AsError(err).Write(w, nil)
		return
	}
	s.drained.Store(o.Draining)
	s.touch()
	o.Draining, o.Requests = s.draining(), s.InFlight()
	s.log.Info("draining by order", "draining", o.Draining, "requests", o.Requests)
	writeJSON(w, http.StatusOK, o)
}

// lease renews the lease of a hand-off, or ends it.
func (s *Server) lease(w http.ResponseWriter, r *http.Request) {
	var o struct {
		Handle    string `json:"handle"`
		Operation string `json:"operation"`
		Action    string `json:"action"`
	}
	if err := readOrder(r, &o); err != nil {
		openai.AsError(err).Write(w, nil)
		return
	}
	if o.Action != "" && o.Action != leaseRenew && o.Action != leaseRelease {
		openai.BadRequest("action", openai.CodeInvalidValue, "action must be renew or release").Write(w, nil)
		return
	}
	h, err := handoff.ParseHandle(o.Handle)
	if err != nil {
		openai.BadRequest("handle", openai.CodeInvalidValue, "handle: %s", err).Write(w, nil)
		return
	}
	m := s.model.Load()
	if m == nil || m.KV == nil {
		handoffGone().Write(w, nil)
		return
	}
	expires := time.Now()
	if o.Action == leaseRelease {
		err = m.KV.Store.Release(h, o.Operation)
	} else {
		expires, err = m.KV.Store.Renew(h, o.Operation)
	}
	if errors.Is(err, handoff.ErrGone) {
		handoffGone().Write(w, nil)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Expires float64 `json:"expires"` // Unix seconds
	}{float64(expires.UnixMilli()) / 1000})
}

func handoffGone() *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "handoff_gone",
		Message: "there is no such hand-off for this operation", NoRetry: true}
}

// enter makes a request known under its operation until leave.
func (s *Server) enter(operation string, c *call) (leave func()) {
	if operation == "" {
		return func() {}
	}
	s.mu.Lock()
	s.calls[operation] = c
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls[operation] == c { // not that of a later try
			delete(s.calls, operation)
		}
	}
}
