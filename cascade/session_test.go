package cascade

import (
	"testing"
	"time"
)

func TestSession(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o StickyOptions
	hard := Turn{Tier: TierCloud, Gain: .5, Theta: .2, Known: true}
	calm := Turn{Tier: TierCloud, Gain: .1, Theta: .2, Known: true}
	s := Session{}.Next(hard, o, now)
	if !s.Sticky(o, now) {
		t.Fatal("an escalation does not pin the session")
	}
	if s.Sticky(o, now.Add(31*time.Minute)) {
		t.Error("a session is pinned beyond its time")
	}
	if s = s.Next(calm, o, now); !s.Pinned {
		t.Error("one calm turn releases the session")
	}
	if again := s.Next(hard, o, now).Next(calm, o, now); !again.Pinned {
		t.Error("a hard turn in between does not start the count again")
	}
	if s = s.Next(calm, o, now); s.Pinned {
		t.Error("two calm turns do not release the session")
	}
	tool := calm
	tool.ToolCall = true
	if s := (Session{Pinned: true, Calm: 5, Last: now}).Next(tool, o, now); !s.Pinned {
		t.Error("an open tool call is handed to another tier")
	}
	if s := (Session{Pinned: true, Last: now}).Next(Turn{Tier: TierEdge}, o, now); s.Pinned {
		t.Error("an answer of the edge leaves the session pinned")
	}
}
