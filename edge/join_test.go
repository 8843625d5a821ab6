package edge

import (
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/internal/enroll"
)

// A device joins by whichever gateway answers; a refusal is final.
func TestJoinAny(t *testing.T) {
	const dead = "https://127.0.0.1:1"
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
