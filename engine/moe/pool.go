package moe

import (
	"sync"
	"sync/atomic"
)

// task is work in parts that may run at the same time.
type task interface {
	// do runs part i on a thread.
	do(thread, i int)
}

// pool runs tasks on a fixed number of threads, of which the caller is one.
// The threads sleep between tasks.
type pool struct {
	wake []chan struct{}
	wg   sync.WaitGroup
	task task
	n    int64
	next atomic.Int64
}

func newPool(threads int) *pool {
	p := &pool{}
	for i := range threads - 1 {
		c := make(chan struct{})
		p.wake = append(p.wake, c)
		go func() {
			for range c {
				p.work(i + 1)
				p.wg.Done()
			}
		}()
	}
	return p
}

// threads is the number of threads.
func (p *pool) threads() int { return len(p.wake) + 1 }

// run does all n parts of t and returns.
func (p *pool) run(t task, n int) {
	p.task, p.n = t, int64(n)
	p.next.Store(0)
	helpers := min(len(p.wake), n-1)
	p.wg.Add(max(0, helpers))
	for i := range helpers {
		p.wake[i] <- struct{}{}
	}
	p.work(0)
	p.wg.Wait()
}

func (p *pool) work(thread int) {
	for {
		i := p.next.Add(1) - 1
		if i >= p.n {
			return
		}
		p.task.do(thread, int(i))
	}
}

// close ends the threads.
func (p *pool) close() {
	for _, c := range p.wake {
		close(c)
	}
}
