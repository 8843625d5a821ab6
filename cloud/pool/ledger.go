package pool

import (
	"time"

	"github.com/weirhq/weir/cloud/route"
)

// unseenFor is how long a leg that the instance never reported counts beside
// what it reports: by then it has ended, or never came (Llumnix's 10 s).
const unseenFor = 10 * time.Second

// ledger counts one gateway's legs at one instance.
type ledger struct {
	total  route.InFlight
	unseen route.InFlight // of total, what no report has held yet
	legs   map[*Leg]*entry
}

type entry struct {
	operation string
	prompt    int // bytes that the leg still prefills
	at        time.Duration
	unseen    bool
	movable   bool          // another instance can continue it
	most      int           // tokens of the answer; 0 is unknown
	asked     time.Duration // not to be asked to leave before, on the pool's clock
	heir      *instance     // whom it was asked to leave for, where that was said
	whole     bool          // at once: its KV could not be copied ahead
	cause     Cause         // why it is told to leave, "" where it is not
	moves     int           // of the stream, over all its legs
	moved     time.Duration // the last of them, on the pool's clock; 0 is never
}

func (l *ledger) open(leg *Leg, ask *Ask, prompt int, now time.Duration) {
	if l.legs == nil {
		l.legs = map[*Leg]*entry{}
	}
	l.legs[leg] = &entry{operation: ask.Operation, prompt: prompt, at: now, unseen: true, movable: ask.Movable, most: ask.MaxTokens}
	add(&l.total, 1, prompt)
	add(&l.unseen, 1, prompt)
}

func add(f *route.InFlight, requests, bytes int) {
	f.Requests += requests
	f.PromptBytes += bytes
}

// prefilled takes the leg's prompt off the backlog.
func (l *ledger) prefilled(leg *Leg) {
	e := l.legs[leg]
	if e == nil {
		return // of a process that is gone
	}
	add(&l.total, 0, -e.prompt)
	if e.unseen {
		add(&l.unseen, 0, -e.prompt)
	}
	e.prompt = 0
}

func (l *ledger) close(leg *Leg) {
	e := l.legs[leg]
	if e == nil {
		return
	}
	l.prefilled(leg)
	l.total.Requests--
	l.see(e)
	delete(l.legs, leg)
}

// see stops to count a leg beside the reports.
func (l *ledger) see(e *entry) {
	if e.unseen {
		e.unseen = false
		add(&l.unseen, -1, -e.prompt)
	}
}

// reconcile compares the ledger with a report's operations: what is reported,
// or was not in time, is not unseen any more.
func (l *ledger) reconcile(reported map[string]bool, now time.Duration) {
	for _, e := range l.legs {
		if e.unseen && (reported[e.operation] || now-e.at > unseenFor) {
			l.see(e)
		}
	}
}
