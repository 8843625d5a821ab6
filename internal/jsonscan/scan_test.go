package jsonscan

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzMembers compares the scanner with encoding/json: on valid objects it sees
// the same members.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, ` {"a": [1, {"b":"\\\""}], "c":null} `, `{"a":{"b":[]},"d":"e"}`, `{"a":1,}`, `{"\u0061":1}`, `[1]`, `{"a"`, `{"a":1}{`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got := map[string]json.RawMessage{}
		s := Members(data)
		for s.Next() {
			var key string
			if json.Unmarshal(append(append([]byte{'"'}, s.Key...), '"'), &key) == nil {
				got[key] = append([]byte(nil), s.Val...)
			}
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(data, &want) != nil || want == nil {
			return
		}
		if !s.OK() {
			t.Fatalf("refused the valid object %q", data)
		}
		if len(got) != len(want) {
			t.Fatalf("%q: members %q, want %q", data, got, want)
		}
		for k, v := range want {
			if string(got[k]) != string(v) {
				t.Fatalf("%q: member %q is %q, want %q", data, k, got[k], v)
			}
		}
	})
}

// FuzzElements does the same for lists, and for texts in them.
func FuzzElements(f *testing.F) {
	for _, s := range []string{`[]`, `[1]`, ` [ "a" , {"b":[2]}, "\u00e9\n" ] `, `[1,]`, `[,1]`, `{}`, `["a"`, `["\ud800"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want []json.RawMessage
		valid := json.Unmarshal(data, &want) == nil && want != nil
		l, n := Elements(data), 0
		for l.Next() {
			if !valid {
				continue
			}
			if n >= len(want) || string(l.Val) != string(want[n]) {
				t.Fatalf("%q: element %d is %q", data, n, l.Val)
			}
			var text string
			isText := l.Val[0] == '"' && json.Unmarshal(l.Val, &text) == nil
			got, ok := AppendText([]byte("x"), l.Val)
			// encoding/json replaces bytes that are not UTF-8; a copy keeps them.
			if ok != isText || ok && string(got) != "x"+text && utf8.Valid(l.Val) {
				t.Fatalf("%q is the text %q, want %q", l.Val, got, text)
			}
			n++
		}
		if valid && n != len(want) {
			t.Fatalf("%q: %d elements, want %d", data, n, len(want))
		}
	})
}

func TestSmall(t *testing.T) {
	if First([]byte(` [ 7, 8]`))[0] != '7' || First([]byte(`[]`)) != nil || First([]byte(`7`)) != nil {
		t.Error("First")
	}
	for val, want := range map[string]bool{`""`: false, `"a"`: true, `[]`: false, `[ ]`: false, `[1]`: true, `{}`: false, `{"a":1}`: true, `1`: false, `null`: false} {
		if Filled([]byte(val)) != want {
			t.Errorf("Filled(%s)", val)
		}
	}
}
