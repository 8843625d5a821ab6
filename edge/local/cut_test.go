package local_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/uplink"
)

// headed tells when the head of an answer has come.
type headed struct {
	local.Cloud
	came chan struct{}
}

func (h *headed) Do(ctx context.Context, r uplink.Request) (*uplink.Response, error) {
	resp, err := h.Cloud.Do(ctx, r)
	if err == nil {
		h.came <- struct{}{}
	}
	return resp, err
}

// A gateway that dies after the head of a stream and before the first event, or
// within a whole answer, is asked once more for the same attempt, by whose id it is
// billed once; one that dies again is not.
func TestCloudDiesBeforeItsFirstEvent(t *testing.T) {
	heads := &headed{came: make(chan struct{}, 8)}
	n := startNode(t, func(o *local.Options) { heads.Cloud, o.Cloud = o.Cloud, heads })
	n.worker.Set(unsure)
	ids := map[string]bool{}
	for _, stream := range []string{"", `,"stream":true`} {
		for deaths, tier := range map[int]string{1: "cloud", 2: "edge"} {
			left := atomic.Int32{}
			left.Store(int32(deaths))
			n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
				if left.Add(-1) < 0 {
					cloudtest.Say("from the cloud")(w, r)
					return
				}
				for len(heads.came) > 0 { // of earlier answers
					<-heads.came
				}
				w.Header().Set("Content-Length", "1000")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-heads.came:
				case <-r.Context().Done():
				}
				panic(http.ErrAbortHandler)
			})
			before := len(n.cloud.Seen())
			a := n.chat(stream)
			seen := n.cloud.Seen()[before:]
			if string(a.weir.Tier) != tier || len(seen) != 2 {
				t.Fatalf("%d deaths%s: asked %d times, %+v", deaths, stream, len(seen), a.weir)
			}
			for _, name := range []string{"X-Weir-Operation", "X-Weir-Attempt"} {
				if id := seen[0].Header.Get(name); id == "" || id != seen[1].Header.Get(name) || ids[id] {
					t.Errorf("%d deaths%s: %s is %q, then %q; used before: %v", deaths, stream, name, id, seen[1].Header.Get(name), ids[id])
				} else {
					ids[id] = true
				}
			}
		}
	}
}
