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

// A gateway that dies after the head of a stream and before the first event is
// asked once more; one that dies again is not. A whole answer is never asked for
// again: it was billed before its head left.
func TestCloudDiesBeforeItsFirstEvent(t *testing.T) {
	heads := &headed{came: make(chan struct{}, 8)}
	n := startNode(t, func(o *local.Options) { heads.Cloud, o.Cloud = o.Cloud, heads })
	n.worker.Set(unsure)
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
			if stream == "" {
				if a.weir.Tier != "edge" || len(seen) != 1 {
					t.Errorf("%d deaths of a whole answer: asked %d times, %+v", deaths, len(seen), a.weir)
				}
				continue
			}
			if string(a.weir.Tier) != tier || len(seen) != 2 || seen[0].Header.Get("X-Weir-Operation") != seen[1].Header.Get("X-Weir-Operation") {
				t.Errorf("%d deaths%s: asked %d times, %+v", deaths, stream, len(seen), a.weir)
			}
		}
	}
}
