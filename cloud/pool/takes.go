package pool

import "github.com/weirhq/weir/cloud/route"

// Takes reports whether an instance could take the request now. It reserves
// nothing.
func (p *Pool) Takes(ask route.RequestView) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return route.Takes(&route.Observation{Now: p.now(), Req: ask, Inst: p.observeLocked()})
}
