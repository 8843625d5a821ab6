package up

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/demo"
)

// ensureDemo makes the demo tenant and its key at the first start, and a join
// token while the edge has not joined. Later starts find all that in the data
// directory.
func (s *supervisor) ensureDemo(ctx context.Context, r *client.Ready) error {
	token, err := os.ReadFile(s.path("secrets", "admin-token"))
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	r.AdminToken = strings.TrimSpace(string(token))
	o := demo.Options{CloudURL: r.CloudURL, HTTP: http.DefaultClient, AdminToken: r.AdminToken, KeyFile: s.path("secrets", "demo-key")}
	if !s.edgeJoined() {
		o.JoinFile = s.joinToken()
	}
	r.AppKey, err = demo.Ensure(ctx, o)
	return err
}

// edgeJoined reports whether the edge has its identity already.
func (l layout) edgeJoined() bool {
	_, err := os.Stat(l.path("edge", "identity"))
	return err == nil
}
