package prefix

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func parse(t testing.TB, s string) map[string]json.RawMessage {
	t.Helper()
	var b map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &b); err != nil {
		t.Fatalf("%v: %s", err, s)
	}
	return b
}

func keysOf(t testing.TB, s string) []Key { return Append(nil, "f", "s", parse(t, s)) }

// shared is how many keys two chains share from the front.
func shared(a, b []Key) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestSameValueSameKeys(t *testing.T) {
	long := strings.Repeat("word ", 60)
	want := keysOf(t, `{"messages":[{"role":"user","content":"`+long+` <é😀\n\"/"}]}`)
	if len(want) < 5 {
		t.Fatalf("%d keys", len(want))
	}
	for name, s := range map[string]string{
		"white space":     "{ \"messages\" :\n [ {\t\"role\" : \"user\" , \"content\": \"" + long + ` <é😀\n\"/" } ] }`,
		"order":           `{"messages":[{"content":"` + long + ` <é😀\n\"/","role":"user"}]}`,
		"escapes":         `{"messages":[{"role":"us\u0065r","content":"` + long + ` \u003c\u00E9\ud83d\ude00\u000a\u0022\/"}]}`,
		"other members":   `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + long + ` <é😀\n\"/"}],"max_tokens":4}`,
		"tools are null":  `{"tools":null,"messages":[{"role":"user","content":"` + long + ` <é😀\n\"/"}]}`,
		"tools are empty": `{"tools": null ,"messages":[{"role":"user","content":"` + long + ` <é😀\n\"/"}]}`,
	} {
		if got := keysOf(t, s); !slices.Equal(got, want) {
			t.Errorf("%s: other keys after %d of %d", name, shared(got, want), len(want))
		}
	}
}

// TestRewrittenBodyHasTheSameKeys: a gateway parses a body and writes it anew.
func TestRewrittenBodyHasTheSameKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type turn struct {
			Role    string `json:"role"`
			Content any    `json:"content"`
		}
		text := rapid.String()
		turns := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) turn {
			if rapid.Bool().Draw(t, "parts") {
				return turn{"user", []any{map[string]any{"type": "text", "text": text.Draw(t, "part")}}}
			}
			return turn{"assistant", text.Draw(t, "text") + strings.Repeat("x", 70)}
		}), 1, 6).Draw(t, "turns")
		var pretty bytes.Buffer
		enc := json.NewEncoder(&pretty)
		enc.SetEscapeHTML(rapid.Bool().Draw(t, "escape"))
		enc.SetIndent("", rapid.SampledFrom([]string{"", "  ", "\t"}).Draw(t, "indent"))
		if err := enc.Encode(map[string]any{"messages": turns, "tools": []any{1.5, true, nil}}); err != nil {
			t.Fatal(err)
		}
		var first, again map[string]json.RawMessage
		if err := json.Unmarshal(pretty.Bytes(), &first); err != nil {
			t.Fatal(err)
		}
		rewritten, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(rewritten, &again); err != nil {
			t.Fatal(err)
		}
		if a, b := Append(nil, "f", "", first), Append(nil, "f", "", again); !slices.Equal(a, b) {
			t.Fatalf("%d and %d keys, %d shared\n%s", len(a), len(b), shared(a, b), pretty.String())
		}
	})
}

// TestLongerConversationKeepsKeys: each turn only adds keys.
func TestLongerConversationKeepsKeys(t *testing.T) {
	var turns []string
	var before []Key
	for i := range 8 {
		turns = append(turns, fmt.Sprintf(`{"role":"user","content":"turn %d %s"}`, i, strings.Repeat("and so on ", 20)))
		now := keysOf(t, `{"tools":[{"type":"function"}],"messages":[`+strings.Join(turns, ",")+`]}`)
		if len(now) <= len(before) || shared(now, before) < len(before)-1 {
			t.Fatalf("turn %d: %d keys, %d shared with %d before", i, len(now), shared(now, before), len(before))
		}
		before = now
	}
}

func TestDifferentRequestsDiffer(t *testing.T) {
	long := strings.Repeat("word ", 60)
	base := `{"messages":[{"role":"user","content":"` + long + `"}]}`
	want := keysOf(t, base)
	for name, got := range map[string][]Key{
		"salt":        Append(nil, "f", "other", parse(t, base)),
		"fingerprint": Append(nil, "g", "s", parse(t, base)),
		"shifted":     Append(nil, "fs", "", parse(t, base)),
		"text prompt": keysOf(t, `{"prompt":"`+long+`"}`),
		"tools":       keysOf(t, `{"tools":[1],"messages":[{"role":"user","content":"`+long+`"}]}`),
		"first word":  keysOf(t, `{"messages":[{"role":"user","content":"Word `+long[5:]+`"}]}`),
	} {
		if len(got) == 0 || shared(got, want) > 0 {
			t.Errorf("%s: %d keys, %d shared", name, len(got), shared(got, want))
		}
	}
	late := keysOf(t, `{"messages":[{"role":"user","content":"`+long[:200]+"X"+long[201:]+`"}]}`)
	if n := shared(late, want); n != 3 { // 200 bytes and some before them
		t.Errorf("a late change leaves %d keys", n)
	}
}

func TestBounds(t *testing.T) {
	if got := keysOf(t, `{"messages":[]}`); len(got) != 0 {
		t.Errorf("%d keys of nothing", len(got))
	}
	got := keysOf(t, `{"prompt":"`+strings.Repeat("x", 2*MaxKeys*BlockBytes)+`"}`)
	if len(got) != MaxKeys {
		t.Errorf("%d keys", len(got))
	}
	if again := Append(got, "f", "s", parse(t, `{"prompt":"`+strings.Repeat("x", 100)+`"}`)); len(again) != MaxKeys+1 {
		t.Errorf("%d keys after appending", len(again))
	}
}

// TestNesting: members are put in order down to sortDepth, and how deep a body
// nests does not change that each of its bytes is read a bounded number of times:
// read once a level, the last one here would be 9 GB.
func TestNesting(t *testing.T) {
	long := strings.Repeat("word ", 60)
	nested := func(levels int, inside string) []Key {
		return keysOf(t, `{"messages":`+strings.Repeat(`{"a":`, levels)+inside+strings.Repeat(`}`, levels)+`}`)
	}
	pair, swapped, spaced := `{"a":1,"b":"`+long+`"}`, `{"b":"`+long+`","a":1}`, "{ \"a\" :1 ,\n\"b\": \""+long+`" }`
	for _, tt := range []struct {
		levels int
		same   bool
	}{{0, true}, {sortDepth - 1, true}, {sortDepth, false}, {1000, false}} {
		want := nested(tt.levels, pair)
		if got := nested(tt.levels, swapped); slices.Equal(got, want) != tt.same {
			t.Errorf("%d levels: %d of %d keys are shared", tt.levels, shared(got, want), len(want))
		}
		if got := nested(tt.levels, spaced); !slices.Equal(got, want) {
			t.Errorf("%d levels and white space: %d of %d keys are shared", tt.levels, shared(got, want), len(want))
		}
	}
	if got := nested(9000, `"`+strings.Repeat("x", 1<<20)+`"`); len(got) != MaxKeys {
		t.Errorf("%d keys", len(got))
	}
}

func TestKeyText(t *testing.T) {
	k := keysOf(t, `{"prompt":"`+strings.Repeat("x", 100)+`"}`)[0]
	if got, err := ParseKey(k.String()); err != nil || got != k {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "00", k.String() + "0", strings.Repeat("g", 32)} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// FuzzAppend: whatever the bytes, it ends, and valid JSON keeps its keys when it
// is written anew.
func FuzzAppend(f *testing.F) {
	for _, s := range []string{``, `{}`, `[1,[2,{"a":"b\\\""}]]`, `"\ud800\u00e9\ud83d"`, `{"a":{"b":[{}]},"a":1}`, strings.Repeat(`{"a":`, 20) + `{"b":[1, 2],"a":"\n"}` + strings.Repeat(`}`, 20), `[`, `{"`, `"\`, `{]`, `"\u1"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		body := map[string]json.RawMessage{"messages": raw}
		got := Append(nil, "f", "s", body)
		if !json.Valid(raw) {
			return
		}
		again, err := json.Marshal(json.RawMessage(raw))
		if err != nil {
			t.Skip()
		}
		body["messages"] = again
		if want := Append(nil, "f", "s", body); !slices.Equal(got, want) {
			t.Errorf("%q: %d keys, rewritten %d", raw, len(got), len(want))
		}
	})
}

func TestNoAllocation(t *testing.T) {
	body := parse(t, `{"tools":[{"a":1}],"messages":[{"role":"user","content":"`+strings.Repeat("\\n word", 500)+`"}]}`)
	dst := make([]Key, 0, 100)
	if n := testing.AllocsPerRun(50, func() { Append(dst, "fingerprint", "salt", body) }); n > 4 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	body := parse(b, `{"messages":[{"role":"user","content":"`+strings.Repeat("some words of it ", 1000)+`"}]}`)
	dst := make([]Key, 0, MaxKeys)
	b.SetBytes(int64(len(body["messages"])))
	b.ReportAllocs()
	for b.Loop() {
		Append(dst, "fingerprint", "salt", body)
	}
}
