package uplink

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Group is the way to a cloud of several gateways. Each has an Uplink that is kept
// up; requests take the first one that works, in the order given.
type Group struct{ links []*Uplink }

// NewGroup returns a Group for the gateways at urls, which share a CA; opt's BaseURL
// is not looked at. It opens no socket; Run does.
func NewGroup(urls []string, opt Options) (*Group, error) {
	g := &Group{}
	for _, url := range urls {
		opt.BaseURL = url
		u, err := New(opt)
		if err != nil {
			return nil, err
		}
		g.links = append(g.links, u)
	}
	if len(g.links) == 0 {
		return nil, errors.New("uplink: a gateway is needed")
	}
	return g, nil
}

// Run keeps the links up until ctx ends, then closes them.
func (g *Group) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(g.links))
	for i, u := range g.links {
		wg.Go(func() { errs[i] = u.Run(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Do sends a request to the first gateway that works. When the way there breaks
// before any byte of the answer, because a leg or the gateway is lost, the same
// request is sent once more: to another gateway where one is up, else on the leg
// that is best then, unless it is to be sent once. A gateway bills what it answers,
// also where the answer is lost on the way: what must be paid once has an attempt
// id of its own in its header. An answer of any status is never repeated.
// ErrDown when no gateway can be reached; what is still unknown is waited for.
func (g *Group) Do(ctx context.Context, r Request) (*Response, error) {
	var lost *Uplink // on which the request broke
	var first error
	for {
		u := g.best(lost)
		resp, via, err := u.once(ctx, r)
		switch {
		case err == nil && first == nil:
			return &Response{Response: resp, Via: via, Attempts: 1}, nil
		case err == nil:
			return &Response{Response: resp, Via: via, Attempts: 2}, nil
		case errors.Is(err, ErrDown) && ctx.Err() == nil && g.hopeful():
			continue // it was unknown, and another may be up
		case r.Once:
			return nil, err
		case first != nil:
			return nil, fmt.Errorf("%w (after a retry; first: %w)", err, first)
		case ctx.Err() != nil || errors.Is(err, ErrDown):
			return nil, err
		}
		lost, first = u, err
	}
}

// best is the first gateway that is up, or else one of which nothing is known yet;
// lost comes after others in the same state.
func (g *Group) best(lost *Uplink) *Uplink {
	best, rank := g.links[0], 4
	for _, u := range g.links {
		r := 4
		switch s, _, _ := u.state(); s {
		case Up:
			r = 0
		case Unknown:
			r = 2
		}
		if u == lost {
			r++
		}
		if r < rank {
			best, rank = u, r
		}
	}
	return best
}

// hopeful reports whether any gateway may be reached.
func (g *Group) hopeful() bool {
	for _, u := range g.links {
		if s, _, _ := u.state(); s != Down {
			return true
		}
	}
	return false
}

// Stats are those of the gateway in use, with the requests sent to all.
func (g *Group) Stats() Stats {
	s := g.best(nil).Stats()
	s.QUICRequests, s.H2Requests = 0, 0
	for _, u := range g.links {
		own := u.Stats()
		s.QUICRequests += own.QUICRequests
		s.H2Requests += own.H2Requests
	}
	return s
}
