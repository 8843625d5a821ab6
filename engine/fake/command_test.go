package fake

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/testproc"
)

func command(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Getenv: func(string) string { return "" }}
	code = cli.Main(context.Background(), env, []cli.Command{Command()}, append([]string{"fake-engine"}, args...))
	return code, o.String(), e.String()
}

func TestCommandLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--help"}, 0, "--per-prompt-token"},
		{[]string{"extra"}, 2, "no arguments"},
		{[]string{"--itl", "-1s"}, 2, "negative"},
		{[]string{"--weir", "--role", "decoder"}, 2, "decoder"},
		{[]string{"--itl", "soon"}, 2, "itl"},
		{[]string{"--log-level", "loud"}, 1, "loud"},
		{[]string{"--listen", taken.Addr().String()}, 1, "address already in use"},
	} {
		if code, out, errs := command(tt.args...); code != tt.code || !strings.Contains(out+errs, tt.want) {
			t.Errorf("%v: exit %d, %s%s", tt.args, code, out, errs)
		}
	}
}

func TestServeUntilTheEnd(t *testing.T) {
	addr := testproc.FreeAddr(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, addr, Options{}) }()
	eventually(t, "health", func() bool {
		resp, err := http.Get("http://" + addr + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
