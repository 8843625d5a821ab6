package gateway

import (
	"sync"

	"github.com/google/uuid"

	"github.com/weirhq/weir/tenants"
)

// A device whose connection broke asks for the same attempt again, of another
// gateway or of this one, and may not know that it was answered and billed. So
// the row of a whole answer has an id that follows from the device's attempt and
// all that it asks for: the ledger takes the first such row, and the second is
// nobody's to pay. Rows of any other outcome have ids of their own, so that what
// failed or was lost never stands in an answer's place.

// mostAnswers is how often a gateway lets answers to one attempt be one row: a
// device asks once and once more. Beyond it each is paid for, or a device could
// have any number of answers to a request for the price of one.
const mostAnswers = 2

// keptAnswers is how many ids a gateway remembers at least; up to twice as many.
const keptAnswers = 1 << 15

// answers counts the answers by their id, the newest ones.
type answers struct {
	mu            sync.Mutex
	counts, older map[string]int
}

// take reports whether one more answer may have the id.
func (a *answers) take(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil || len(a.counts) >= keptAnswers {
		a.counts, a.older = map[string]int{}, a.counts
	}
	n := max(a.counts[id], a.older[id])
	if n >= mostAnswers {
		return false
	}
	a.counts[id] = n + 1
	return true
}

// answerID is the ledger's id for the row of a whole answer; own is the
// attempt's, for what no device has named.
func (x *exchange) answerID(own string) string {
	if x.attempt == uuid.Nil {
		return own
	}
	id := tenants.AnswerID(x.attempt, []byte(x.op), []byte(x.who.KeyID), x.ask.hash[:])
	if !x.g.answers.take(id) {
		return own
	}
	return id
}
