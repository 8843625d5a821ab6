package pool

import "github.com/weirhq/weir/cloud/route"

// Slots is how many requests of a model its ready instances decode at a time,
// 0 where one of them does not say.
func (p *Pool) Slots(model string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, in := range p.inst {
		if in.Model != model || !in.view.Ready || in.view.Role == route.Prefill {
			continue
		}
		if in.maxSeqs == 0 {
			return 0
		}
		n += in.maxSeqs
	}
	return n
}
