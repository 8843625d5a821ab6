package edge

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/edge/uplink"
)

// watchedLink is the uplink as requests use it: it knows whether one of them is
// on its way, so that what can wait gives way to them.
type watchedLink struct {
	*uplink.Group
	busy atomic.Int64
}

// Do implements local.Cloud.
func (l *watchedLink) Do(ctx context.Context, r uplink.Request) (*uplink.Response, error) {
	l.busy.Add(1)
	resp, err := l.Group.Do(ctx, r)
	if err != nil {
		l.busy.Add(-1)
		return nil, err
	}
	resp.Body = &watchedBody{ReadCloser: resp.Body, end: func() { l.busy.Add(-1) }}
	return resp, nil
}

// idle reports whether no request is on its way.
func (l *watchedLink) idle() bool { return l.busy.Load() == 0 }

type watchedBody struct {
	io.ReadCloser
	once sync.Once
	end  func()
}

// Close implements io.Closer.
func (b *watchedBody) Close() error {
	defer b.once.Do(b.end)
	return b.ReadCloser.Close()
}
