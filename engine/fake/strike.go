package fake

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// longLine is longer than any reader of events should take.
const longLine = 5 << 20

// strike lets the request's fault act at a stage. stop ends the request.
func (c *run) strike(ctx context.Context, s Stage) (stop bool) {
	f := c.fault
	if f == nil || !f.due(s, c.call) {
		return false
	}
	w := c.w
	switch f.Fault {
	case FaultReset:
		reset(w, s == Headers)
	case FaultCut:
		panic(http.ErrAbortHandler)
	case FaultStall:
		<-ctx.Done()
	case FaultSlow:
		return sleep(ctx, c.e.o.Delay) != nil
	case FaultStatus500:
		writeError(w, http.StatusInternalServerError, "Internal server error", "")
	case FaultBusy:
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, "the engine is overloaded", "")
	case FaultRateLimit:
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusTooManyRequests, "too many requests", "")
	case FaultContentType:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html><body>It works!</body></html>")
	case FaultEmpty:
		w.WriteHeader(http.StatusOK)
	default:
		c.garble(f.Fault)
	}
	return true
}

// due reports whether the fault strikes at this moment.
func (f *Script) due(s Stage, c Call) bool {
	switch f.Fault {
	case FaultLease, FaultTransfer:
		return false
	case FaultBusy, FaultRateLimit:
		return s == Arrived // who has no room takes nothing in
	case FaultStatus500, FaultContentType, FaultEmpty:
		return s == Headers
	case FaultNoDone:
		return s == End && f.After == 0 || s == Token && f.After > 0 && c.Token == f.After
	}
	if f.After == 0 {
		return s == Headers
	}
	return s == Token && c.Token == f.After
}

// garble writes what cannot be read, in the answer's form.
func (c *run) garble(f Fault) {
	line := map[Fault]string{
		FaultMalformed:  `{"choices":[}`,
		FaultTruncated:  `{"id":"` + c.id + `","choi`,
		FaultErrorEvent: `{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","param":null,"code":500}}`,
		FaultLongLine:   `{"id":"` + strings.Repeat("x", longLine) + `"}`,
		FaultNoDone:     "",
	}[f]
	if !c.q.Stream {
		c.w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(c.w, line)
		return
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	if line != "" {
		_, _ = io.WriteString(c.w, "data: "+line+"\n\n")
	}
	if f == FaultErrorEvent {
		_, _ = io.WriteString(c.w, "data: [DONE]\n\n")
	}
}

// putFaults replaces the faults by those in the body, one a line.
func (e *Engine) putFaults(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(io.LimitReader(r.Body, 4096))
	if err != nil {
		return // the client is gone
	}
	var list []Script
	for line := range strings.FieldsSeq(string(text)) {
		s, err := ParseScript(line)
		if err != nil {
			writeError(w, http.StatusBadRequest, err.Error(), "")
			return
		}
		list = append(list, s)
	}
	e.SetFaults(list...)
}

// mostPace bounds how much longer a token may be made to take.
const mostPace = 1000

// putPace makes each token take so many times as long as the Options say: a
// machine that degrades. The state's cost model stays what it was.
func (e *Engine) putPace(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(io.LimitReader(r.Body, maxOrder))
	if err != nil {
		return // the client is gone
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < 1 || n > mostPace {
		writeError(w, http.StatusBadRequest, "want a whole number from 1 to 1000", "")
		return
	}
	e.pace.Store(int64(n))
}

// putFailing makes the state say why the engine expects to fail; an empty body
// takes that back.
func (e *Engine) putFailing(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(io.LimitReader(r.Body, maxOrder))
	if err != nil {
		return // the client is gone
	}
	why := strings.TrimSpace(string(text))
	e.failing.Store(&why)
}

// reset ends the connection with a reset, after half a head where none has
// left yet.
func reset(w http.ResponseWriter, head bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2 resets the stream
	}
	if head {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Ty")
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
