package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
)

// A client that announces a body and does not send it gets an answer, whether
// anybody would have read the body or not, and loses its connection.
func TestBodyThatDoesNotCome(t *testing.T) {
	in := newInstance(t, "d", "mixed")
	r := newRig(t, func(o *Options) { o.Timeouts.Body = 30 * time.Millisecond }, in)
	for head, status := range map[string]int{
		"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer " + r.key: 400,
		"POST /v1/chat/completions HTTP/1.1":                                   401,
		"POST /nowhere HTTP/1.1":                                               404,
	} {
		conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "%s\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", head)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != status || !resp.Close {
			t.Errorf("%s: got %+v, %v", head, resp, err)
		}
	}
}

// A client that does not read a large answer loses it and its place.
func TestWholeAnswerThatIsNotRead(t *testing.T) {
	in := newInstance(t, "d", "mixed")
	in.on(func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
		_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","created":1,"model":"big","choices":[{"index":0,"message":{"role":"assistant","content":"`+
			strings.Repeat("x", 5<<20)+`"},"finish_reason":"stop"}]}`)
		return true
	})
	r := newRig(t, func(o *Options) { o.Timeouts.Write = 50 * time.Millisecond }, in)
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil { // the sender's own buffer takes 4 MiB at most
		t.Fatal(err)
	}
	body := `{"model":"big","messages":[{"role":"user","content":"hi"}]}`
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		r.key, len(body), body)
	await(t, "the request's end", func() bool { return len(r.ledger(t)) > 0 && r.InFlight() == 0 })
	if rows := r.ledger(t); len(rows) != 1 || rows[0].Outcome != tenants.OutcomeOK { // the answer was made
		t.Errorf("ledger %+v", rows)
	}
}

// slow is a client that takes its first bytes late.
type slow struct {
	nowhere
	first sync.Once
	after time.Duration
	took  chan struct{} // closed with the first write
}

func (s *slow) Write(b []byte) (int, error) {
	s.first.Do(func() { time.Sleep(s.after); close(s.took) })
	return len(b), nil
}

// A client that is slow to read is not a silent instance.
func TestSlowClientIsNoStall(t *testing.T) {
	t.Parallel()
	in := newInstance(t, "d", "mixed")
	const stall = 6 * time.Second
	r := newRig(t, func(o *Options) { o.Timeouts.Stall = stall }, in)
	client := &slow{nowhere: nowhere{http.Header{}}, after: stall * 5 / 4, took: make(chan struct{})}
	in.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		in.stream(w, r, body, 2)
		select {
		case <-client.took:
		case <-r.Context().Done():
		}
		return false
	})
	req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(ask1s))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	r.Gateway.ServeHTTP(client, req)
	if rows := r.ledger(t); len(rows) != 1 || rows[0].Outcome != tenants.OutcomeOK {
		t.Errorf("ledger %+v", rows)
	}
}
