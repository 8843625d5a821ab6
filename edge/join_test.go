package edge

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/internal/enroll"
)

// A device joins by whichever gateway answers; a refusal is final.
func TestJoinAny(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "https://" + l.Addr().String()
	_ = l.Close()
	c := cloudtest.Start(t)
	token := c.MintToken(t)
	if _, err := joinAny(t.Context(), filepath.Join(t.TempDir(), "i"), []string{dead, dead}, token); err == nil {
		t.Fatal("joined without a gateway")
	}
	id, err := joinAny(t.Context(), filepath.Join(t.TempDir(), "i"), []string{dead, c.URL}, token)
	if err != nil || id.CloudURL != c.URL {
		t.Fatalf("%+v, %v", id, err)
	}
	if _, err := joinAny(t.Context(), filepath.Join(t.TempDir(), "other"), []string{c.URL, dead}, token); err == nil || enroll.Temporary(err) {
		t.Errorf("a token that is used up: %v", err)
	}
}
