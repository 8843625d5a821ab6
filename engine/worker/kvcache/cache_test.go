package kvcache

import (
	"encoding/binary"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/internal/prefix"
	"pgregory.net/rapid"
)

// counter is a Watcher that counts holders.
type counter map[prefix.Key]int

func (c counter) Hold(keys []prefix.Key) {
	for _, k := range keys {
		c[k]++
	}
}

func (c counter) Drop(keys []prefix.Key) {
	for _, k := range keys {
		if c[k]--; c[k] == 0 {
			delete(c, k)
		}
	}
}

// keys makes one key for each 4 tokens.
func keys(tokens []engine.Token) []prefix.Key {
	var out []prefix.Key
	var k prefix.Key
	for i := 4; i <= len(tokens); i += 4 {
		for _, t := range tokens[i-4 : i] {
			binary.LittleEndian.PutUint64(k[:], binary.LittleEndian.Uint64(k[:])*31+uint64(t))
		}
		out = append(out, k)
	}
	return out
}

func content(salt string, tokens ...engine.Token) Content {
	return Content{Salt: salt, Tokens: tokens, Keys: keys(tokens), Prompt: len(tokens)}
}

func TestMatch(t *testing.T) {
	c := New(counter{})
	long := c.Put(0, content("a", 1, 2, 3, 4, 5, 6, 7))
	short := c.Put(1, content("a", 1, 2, 3))
	foreign := c.Put(2, content("b", 1, 2, 3, 4, 5))
	for _, tt := range []struct {
		name   string
		salt   string
		tokens []engine.Token
		want   *Entry
		n      int
	}{
		{"longest", "a", []engine.Token{1, 2, 3, 4, 9}, long, 4},
		{"own salt", "b", []engine.Token{1, 2, 3, 4, 5, 6}, foreign, 5},
		{"no salt", "", []engine.Token{1, 2, 3}, nil, 0},
		{"nothing shared", "a", []engine.Token{2}, nil, 0},
		{"nothing asked", "a", nil, nil, 0},
	} {
		if e, n := c.Match(tt.salt, tt.tokens); e != tt.want || n != tt.n {
			t.Errorf("%s: %v, %d", tt.name, e, n)
		}
	}
	c.LetGo(short)
	if e, n := c.Match("a", []engine.Token{1, 2, 3, 9}); e != short || n != 3 {
		t.Errorf("a busy sequence before an idle one: %v, %d", e, n)
	}
	c.LetGo(long)
	if e, _ := c.Match("a", []engine.Token{1, 2, 3, 9}); e != short {
		t.Error("the longer of two idle ones")
	}
}

func TestOldest(t *testing.T) {
	c := New(counter{})
	a, b := c.Put(0, content("", 1)), c.Put(1, content("", 2))
	if c.Oldest(nil) != nil {
		t.Error("a busy sequence is oldest")
	}
	c.LetGo(b)
	c.LetGo(a)
	if c.Oldest(nil) != b || c.Oldest(b) != a {
		t.Error("not the one let go first")
	}
	c.Claim(b, 1)
	c.LetGo(b)
	if c.Oldest(nil) != a {
		t.Error("use does not make young")
	}
	c.Remove(a)
	if c.Oldest(b) != nil {
		t.Error("a removed sequence is oldest")
	}
}

func TestKeysFollowTokens(t *testing.T) {
	held := counter{}
	c := New(held)
	e := c.Put(0, content("", 1, 2, 3, 4, 5, 6, 7, 8))
	grown := e.Content
	grown.Tokens = append(grown.Tokens, 9, 10, 11, 12)
	c.Update(e, grown)
	if len(held) != 2 { // output has no keys
		t.Fatalf("%d keys", len(held))
	}
	c.LetGo(e)
	c.Claim(e, 7)
	if len(held) != 1 {
		t.Errorf("%d keys of 7 tokens", len(held))
	}
	c.Claim(e, 3)
	if len(held) != 0 {
		t.Errorf("%d keys of 3 tokens", len(held))
	}
}

// TestBooks does at random what a loop does, beside a plain model.
func TestBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		held := counter{}
		c := New(held)
		tokens := rapid.SliceOfN(rapid.Int32Range(1, 2), 1, 20)
		var all []*Entry
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(all) == 0 || rapid.Bool().Draw(t, "put") {
				all = append(all, c.Put(engine.Seq(i), content(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "salt"), tokens.Draw(t, "tokens")...)))
				continue
			}
			at := rapid.IntRange(0, len(all)-1).Draw(t, "entry")
			e := all[at]
			switch {
			case !e.Idle():
				c.LetGo(e)
			case rapid.Bool().Draw(t, "claim"):
				c.Claim(e, rapid.IntRange(0, len(e.Tokens)).Draw(t, "n"))
			default:
				c.Remove(e)
				all = append(all[:at], all[at+1:]...)
			}
		}
		want := counter{}
		idle, kept := 0, 0
		for _, e := range all {
			want.Hold(e.held())
			if e.Idle() {
				idle++
				kept += len(e.Tokens)
			}
		}
		for k := range want {
			if held[k] != want[k] {
				t.Fatalf("key %v held %d times, want %d", k, held[k], want[k])
			}
		}
		if s, n, _ := c.IdleLoad(16); len(held) != len(want) || s != idle || n != kept {
			t.Fatalf("%d keys of %d, %d idle of %d, %d tokens of %d", len(held), len(want), s, idle, n, kept)
		}
		ask := tokens.Draw(t, "ask")
		_, n := c.Match("a", ask)
		for _, e := range all {
			if e.Salt == "a" && common(e.Tokens, ask) > n {
				t.Fatalf("matched %d tokens, %v has more", n, e.Tokens)
			}
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	c := New(counter{})
	for s := range 32 {
		tokens := make([]engine.Token, 2000)
		for i := range tokens {
			tokens[i] = engine.Token(i % 97)
		}
		tokens[500+s] = 99
		c.LetGo(c.Put(engine.Seq(s), Content{Tokens: tokens}))
	}
	ask := make([]engine.Token, 2000)
	for i := range ask {
		ask[i] = engine.Token(i % 97)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Match("", ask)
	}
}
