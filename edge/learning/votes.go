package learning

import (
	"context"
	"sync"

	"github.com/weirhq/weir/cascade/verifier"
)

// Poll asks the edge model about its own answer, nil where it says nothing.
type Poll func(context.Context) *verifier.Votes

// hear asks for votes that are wanted for the label, and are not known yet.
func (p *Pair) hear(ctx context.Context) {
	if p.Votes == nil && p.Poll != nil {
		p.Votes = p.Poll(ctx)
	}
	p.Poll = nil
}

// pollQueue bounds the escalated answers that wait for votes. Beyond it labels have
// none.
const pollQueue = 16

// polls are escalated answers that wait for votes before they are labelled.
type polls struct {
	mu    sync.Mutex
	queue chan escalated // nil while nobody asks
}

type escalated struct {
	pair  Pair
	cloud Answer
}

// take queues an answer, or reports that it is to be labelled as it is.
func (p *polls) take(e escalated) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.queue <- e:
		return true
	default: // full, or nobody asks
		return false
	}
}

func (p *polls) open() <-chan escalated {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = make(chan escalated, pollQueue)
	return p.queue
}

func (p *polls) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.queue)
	p.queue = nil
}

// runPolls asks one at a time until ctx ends, and then labels what waits as it is.
func (l *Learner) runPolls(ctx context.Context) {
	queue := l.polls.open()
	stop := context.AfterFunc(ctx, l.polls.close)
	defer stop()
	for e := range queue {
		if ctx.Err() == nil {
			e.pair.hear(ctx)
		}
		l.label(e.pair, e.cloud, false)
	}
}
