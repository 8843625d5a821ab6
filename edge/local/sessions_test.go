package local

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
)

// The table forgets the session idle longest, and those that stay nowhere.
func TestSessionsAreBounded(t *testing.T) {
	var table sessions
	now := time.Unix(1e9, 0)
	key := func(i int) sessionKey { return sessionKey{"k", fmt.Sprint(i)} }
	cloud := cascade.Turn{Tier: cascade.TierCloud}
	for i := range maxSessions + 10 {
		table.turn(key(i), cloud, now)
		table.turn(key(0), cloud, now) // is used all the time
	}
	if len(table.byKey) != maxSessions || table.order.Len() != maxSessions {
		t.Fatalf("%d sessions, %d in order", len(table.byKey), table.order.Len())
	}
	if !table.sticky(key(0), now) || table.sticky(key(1), now) || !table.sticky(key(maxSessions), now) {
		t.Error("another than the session idle longest was forgotten")
	}
	table.turn(key(0), cascade.Turn{Tier: cascade.TierEdge}, now)
	if table.sticky(key(0), now) || len(table.byKey) != maxSessions-1 {
		t.Error("a session that is at the edge again is still remembered")
	}
	// Two turns that the edge would have answered well release a session.
	calm := cascade.Turn{Tier: cascade.TierCloud, Known: true, Gain: .1, Theta: .5}
	last := key(maxSessions)
	if table.turn(last, calm, now); !table.sticky(last, now) {
		t.Error("released after one calm turn")
	}
	if table.turn(last, calm, now); table.sticky(last, now) {
		t.Error("kept after two calm turns")
	}
}
