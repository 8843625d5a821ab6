package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/weirhq/weir/engine/worker/state"
)

// How often state is sent: at least, and at most.
const (
	stateIdle  = time.Second
	stateQuick = 50 * time.Millisecond
)

// state sends snapshots for as long as the reader takes them. A reader that does
// not keeps only its own goroutine waiting.
func (s *Server) state(w http.ResponseWriter, r *http.Request) {
	m, err := s.loaded()
	if err != nil {
		err.Write(w, nil)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	rc, reader := http.NewResponseController(w), m.Board.NewReader()
	enc := json.NewEncoder(w)
	tick := time.NewTicker(stateQuick)
	defer tick.Stop()
	var last time.Time
	for s.model.Load() == m { // a lost runner's board tells nothing any more
		if now := time.Now(); reader.Changed() || now.Sub(last) >= stateIdle {
			last = now
			_ = rc.SetWriteDeadline(now.Add(writeTimeout)) // not every writer can
			if enc.Encode(s.message(m, reader, now)) != nil || rc.Flush() != nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-s.stopped:
			return
		}
	}
}

// message adds who this worker is to what the board says.
func (s *Server) message(m *Model, r *state.Reader, now time.Time) *state.Message {
	msg := r.Next()
	st, _ := s.status()
	msg.At, msg.Name, msg.Epoch, msg.Role, msg.Health = now.UTC(), st.Name, st.Epoch, st.Role, st.Status
	msg.Failing, msg.KVBytesPerToken = st.Failing, m.Info.KVBytesPerToken
	msg.Model, msg.Fingerprint, msg.Context, msg.MaxSeqs = st.Model, st.Fingerprint, st.Context, st.MaxSeqs
	msg.Cost = m.Cost
	if m.KV != nil {
		msg.Transfers = m.KV.Endpoint.Transfers()
	}
	return &msg
}
