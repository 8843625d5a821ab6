package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/prefix"
)

// TestLedgerProperties: whatever happens in whatever order, the sums are those
// of the legs under way, what is unseen is a part of them, and at the end all
// is 0.
func TestLedgerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l ledger
		var open []*Leg
		now := time.Duration(0)
		check := func() {
			var want route.InFlight
			var unseen route.InFlight
			for _, e := range l.legs {
				add(&want, 1, e.prompt)
				if e.unseen {
					add(&unseen, 1, e.prompt)
				}
			}
			if l.total != want || l.unseen != unseen || len(l.legs) != len(open) {
				t.Fatalf("total %+v unseen %+v, legs say %+v and %+v", l.total, l.unseen, want, unseen)
			}
		}
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			now += time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond
			var leg *Leg
			if len(open) > 0 {
				leg = rapid.SampledFrom(open).Draw(t, "leg")
			}
			switch kind := rapid.IntRange(0, 3).Draw(t, "kind"); {
			case kind == 0 || leg == nil:
				leg = &Leg{}
				open = append(open, leg)
				l.open(leg, &Ask{Operation: fmt.Sprint("op", len(open)%5)}, rapid.IntRange(0, 1000).Draw(t, "prompt"), now)
			case kind == 1:
				l.prefilled(leg)
			case kind == 2:
				l.close(leg)
				l.close(leg)
				open = slices.DeleteFunc(open, func(o *Leg) bool { return o == leg })
			default:
				l.reconcile(map[string]bool{"op1": true, "op3": rapid.Bool().Draw(t, "op3")}, now)
				for _, e := range l.legs {
					if e.unseen && (e.operation == "op1" || now-e.at > unseenFor) {
						t.Fatalf("still unseen at %v: %+v", now, e)
					}
				}
			}
			check()
		}
		for _, leg := range open {
			l.close(leg)
		}
		open = nil
		if l.total != (route.InFlight{}) || l.unseen != (route.InFlight{}) {
			t.Fatalf("left: %+v %+v", l.total, l.unseen)
		}
	})
}

func keysOf(n int) []prefix.Key {
	out := make([]prefix.Key, n)
	for i := range out {
		out[i] = prefix.Key{byte(i), byte(i >> 8), 1}
	}
	return out
}

func texts(keys []prefix.Key) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k.String()
	}
	return out
}

// message is a plausible one.
func message(seq uint64, full bool) *state.Message {
	return &state.Message{Full: full, Seq: seq, Epoch: "e", Role: "decode", Health: "ok",
		Load: state.Load{Running: 2, Waiting: 1, PrefillTokensWaiting: 50, KVBlockSize: 16, KVBlocksTotal: 100, KVBlocksUsed: 60, CachedBlocks: 20}}
}

func TestKnownFollowsMessages(t *testing.T) {
	var k known
	var x index
	keys := keysOf(6)
	if err := k.apply(message(7, false), &x, 1); !errors.Is(err, errGap) {
		t.Errorf("a stream that begins with a delta: %v", err)
	}
	first := message(1, true)
	first.KeysAdded = texts(keys[:4])
	if err := k.apply(first, &x, time.Second); err != nil {
		t.Fatal(err)
	}
	if x.hit(keys) != 4 || k.load.KVFree != 60*16 || k.load.KVTokens != 1600 || k.load.At != time.Second || k.load.PrefillTokens != 50 {
		t.Errorf("hit %d, load %+v", x.hit(keys), k.load)
	}
	next := message(2, false)
	next.KeysAdded, next.KeysEvicted = texts(keys[4:5]), texts(keys[2:4])
	next.KVBytesPerToken = 100
	next.Transfers = []state.Transfer{{Peer: "a:1", Pulls: 9, Recent: pulled(3000, 3)}, {Peer: "b:1", Recent: pulled(1000, .5)}, {Peer: "c:1", Failures: 9}}
	if err := k.apply(next, &x, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	want := map[string]route.Copy{"a:1": {Tokens: 30, Ms: 3000, Most: 100}, "b:1": {Tokens: 10, Ms: 500, Most: 50}, "": {Tokens: 20, Ms: 1750, Most: 87.5}}
	if x.hit(keys) != 2 || !maps.Equal(k.copies, want) {
		t.Errorf("after the eviction hit %d, copies %v, want %v", x.hit(keys), k.copies, want)
	}
	if err := k.apply(message(4, false), &x, 3); !errors.Is(err, errGap) {
		t.Errorf("a gap: %v", err)
	}
	if err := k.apply(message(9, true), &x, 3); err != nil || x.hit(keys) != 0 {
		t.Errorf("a new beginning: %v, hit %d", err, x.hit(keys))
	}
	bad := message(10, false)
	bad.KeysAdded = []string{"zz"}
	if k.apply(bad, &x, 4) == nil {
		t.Error("a key that is none was taken")
	}
}

// TestIndexIsBounded: guesses forget the oldest, and of a request the longest
// prefix first, so that what is held is always a beginning.
func TestIndexIsBounded(t *testing.T) {
	var x index
	if x.hit(keysOf(3)) != 0 {
		t.Error("an empty index hits")
	}
	for r := range 3 * maxGuessed / 100 {
		keys := make([]prefix.Key, 100)
		for i := range keys {
			keys[i] = prefix.Key{byte(r), byte(r >> 8), byte(i), 9}
		}
		x.guess(keys)
		x.guess(keys)
		if x.hit(keys) != 100 {
			t.Fatalf("request %d: hit %d at once", r, x.hit(keys))
		}
	}
	if len(x.keys) > maxGuessed || len(x.guessed) > maxGuessed {
		t.Errorf("%d keys, %d in the ring", len(x.keys), len(x.guessed))
	}
	if n := x.hit(keysOf(1)); n != 0 {
		t.Errorf("hit of %d bytes", n)
	}
}

// TestPairsReachThePolicy: what a worker tells of its hand-offs from a peer is
// known of that peer by the address that it gives others, whatever its name and
// its URL.
func TestPairsReachThePolicy(t *testing.T) {
	p := still(t, Member{Name: "near", URL: "https://near.example:7424", Role: route.Prefill, Model: "m"}, Member{Name: "d", URL: "https://10.0.0.2:7424", Role: route.Decode, Model: "m"})
	m := message(1, true)
	m.Epoch, m.Role, m.KVBytesPerToken = "e", "decode", 10
	m.Transfers = []state.Transfer{{Peer: "10.0.0.1:7424", Recent: pulled(1000, 2)}, {Peer: "10.0.0.9:1", Recent: pulled(1000, 1)}}
	p.told(t, "d", m)
	views := func() map[string]route.InstanceView {
		p.mu.Lock()
		defer p.mu.Unlock()
		out := map[string]route.InstanceView{}
		for _, v := range p.observeLocked() {
			out[v.ID] = v
		}
		return out
	}
	if v := views(); v["near"].KVAddr != "near.example:7424" || v["d"].Copies["near.example:7424"] != (route.Copy{}) {
		t.Errorf("before it has told its address: %+v", v)
	}
	h, err := readHealth(200, []byte(`{"status":"ok","name":"near","handoff":true,"kv":{"host":"10.0.0.1","port":7424,"alpn":"x"}}`), "m")
	if p.note(p.find("near"), h, err); err != nil {
		t.Fatal(err)
	}
	h.KV = &destination{Host: "", Port: 1 << 20}
	p.note(p.find("near"), h, nil) // no address
	if d := p.find("near").kvAddress(); *d != (destination{"near", "10.0.0.1", 7424}) {
		t.Errorf("its address is %+v", d)
	}
	if v := views(); v["d"].Copies[v["near"].KVAddr].Predict(100) != 2000 || v["d"].Copies[""].Predict(100) != 1500 {
		t.Errorf("%+v", v)
	}
}
