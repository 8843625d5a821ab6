package quota

import (
	"testing"
	"time"
)

// What limits that name a model say of a request, whatever the others do.
func TestNamed(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	one := Limit{ID: "l", Model: "m", Kind: Requests, Window: Day, Max: 1}
	with := func(change func(*Limit)) Limit { l := one; change(&l); return l }
	for name, tt := range map[string]struct {
		limit                 Limit
		named, room, roomThen bool // roomThen: after a request
	}{
		"a budget":      {one, true, true, false},
		"a rate":        {with(func(l *Limit) { l.Window = Minute }), true, true, false},
		"slots":         {with(func(l *Limit) { l.Kind, l.Window = Concurrent, AtOnce }), true, true, false},
		"closed":        {with(func(l *Limit) { l.Max = 0 }), true, false, false},
		"a shadow":      {with(func(l *Limit) { l.Shadow = true }), true, true, true},
		"another model": {with(func(l *Limit) { l.Model = "n" }), false, true, true},
		"all models":    {with(func(l *Limit) { l.Model, l.Max = "", 1 }), false, true, true},
		"another class": {with(func(l *Limit) { l.Class = "batch" }), false, true, true},
	} {
		a, err := NewAccount([]Limit{tt.limit}, Options{}, now)
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Key: "k", Model: "m", Amount: Amount{Requests: 1}}
		for range 2 { // it takes nothing
			if named, room := a.Named(&r, now); named != tt.named || room != tt.room {
				t.Errorf("%s: %v, %v", name, named, room)
			}
		}
		var res Reservation
		a.Admit(&r, now, &res)
		if named, room := a.Named(&r, now); named != tt.named || room != tt.roomThen {
			t.Errorf("%s after a request: %v, %v", name, named, room)
		}
	}
	a, err := NewAccount([]Limit{one}, Options{Leased: true}, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, room := a.Named(&Request{Model: "m", Amount: Amount{Requests: 1}}, now); !room {
		t.Error("a block that was not fetched yet")
	}
}
