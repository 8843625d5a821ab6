package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
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
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "%s\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", head)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != status || !resp.Close {
			t.Errorf("%s: got %+v, %v", head, resp, err)
		}
	}
}
