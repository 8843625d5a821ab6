package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// many is an object of n members k0, k1 and so on, and then more.
func many(n int, more string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":%d,`, i, i)
	}
	return "{" + b.String() + more + "}"
}

func TestRepeated(t *testing.T) {
	for data, want := range map[string]string{
		`{}`: "", `7`: "", `"a"`: "", `[{"a":1},{"a":1}]`: "",
		`{"a":{"a":{"a":"a"}},"b":["a","a"]}`:                       "",
		`{"a":1,"A":2}`:                                             "",
		`{"a":":","b":"\"a\":","c":"a"}`:                            "",
		`{"a":1,"a":1}`:                                             "a",
		`{"a":1, "\u0061" : 2}`:                                     "a",
		`{"weir":{"privacy":"local-only","privacy":"any"}}`:         "weir.privacy",
		`{"weir":{"privacy":"local-only"},"weir":{}}`:               "weir",
		`{"m":[1,{"x":[[],[{"r\n":1,"b":{},"r\n":2}]]}]}`:           "m[1].x[1][0].r\n",
		`[{"a":"\\"},{"a\\":1,"a\\":1}]`:                            `[1].a\`,
		many(few+4, `"z":{"k1":1},"y":1`):                           "",
		many(few+4, `"k3":{}`):                                      "k3",
		`{"o":` + many(few+4, `"k3":{},"\u006b20":1`) + `}`:         "o.k3",
		`{"o":[` + many(40, `"z":1`) + `,{"k1":0,"k1":1}]}`:         "o[1].k1",
		strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat("}", 40): "",
	} {
		if got, twice := Repeated([]byte(data)); got != want || twice != (want != "") {
			t.Errorf("%s: %q %v, want %q", data, got, twice, want)
		}
	}
	if _, twice := Repeated([]byte(`{"":1,"":1}`)); !twice {
		t.Error("a member without a name is passed over")
	}
}

// repeats decides the same by encoding/json's tokens.
func repeats(dec *json.Decoder) bool {
	start, _ := dec.Token()
	if _, nested := start.(json.Delim); !nested {
		return false
	}
	seen := map[json.Token]bool{}
	twice := false
	for dec.More() {
		if start == json.Delim('{') {
			key, _ := dec.Token()
			twice = twice || seen[key]
			seen[key] = true
		}
		twice = repeats(dec) || twice
	}
	_, _ = dec.Token()
	return twice
}

func FuzzRepeated(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `{"a":[{"b":1,"c":{"b":2}},"b"]}`, `["\"",{"\\":1,"\u005c":2}]`, `{"":1,"":1}`, `{"`, `}{`, `"a":`, `:"`,
		many(few, `"k0":1`), many(few+2, `"a":{"k0":1}`)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, twice := Repeated(data) // must not panic, whatever it is given
		if json.Valid(data) && utf8.Valid(data) && twice != repeats(json.NewDecoder(bytes.NewReader(data))) {
			t.Errorf("%q: %q, %v", data, got, twice)
		}
	})
}

type inner struct {
	Rate  *float64 `json:"rate"`
	Plain string
}

type outer struct {
	inner
	In   *inner           `json:"in"`
	List []inner          `json:"list,omitempty"`
	Map  map[string]inner `json:"map"`
	Raw  json.RawMessage  `json:"raw"`
	Skip string           `json:"-"`
}

func TestMisspelt(t *testing.T) {
	for data, want := range map[string]string{
		`{}`: "", `null`: "", `7`: "",
		`{"rate":1,"Plain":"","in":{"rate":2},"list":[{"rate":1}],"map":{"RATE":{"rate":1}},"raw":{"RATE":1},"skip":1,"unknown":{"RATE":1}}`: "",
		`{"Rate":1}`:                       "Rate",
		`{"rate":1,"r\u0041te":1}`:         "rAte",
		`{"plain":""}`:                     "plain",
		`{"in":{"RATE":1}}`:                "in.RATE",
		`{"i\u006e":{"r\u0061te":1}}`:      "",
		`{"i\u006e":{"R\u0061te":1}}`:      "in.Rate",
		`{"list":[{"rate":1},{"ratE":1}]}`: "list[1].ratE",
		`{"map":{"x":{"Rate":1}}}`:         "map.x.Rate",
		`{"RAW":1}`:                        "RAW",
		"{\"li\u017ft\":1}":                "li\u017ft", // encoding/json folds it too
	} {
		if got := Misspelt([]byte(data), reflect.TypeFor[outer]()); got != want {
			t.Errorf("%s: %q, want %q", data, got, want)
		}
	}
	if got := Misspelt([]byte(`[{"Rate":1}]`), reflect.TypeFor[[]inner]()); got != "[0].Rate" {
		t.Errorf("a list: %q", got)
	}
}

// BenchmarkRepeated reads a chat of 20 messages.
func BenchmarkRepeated(b *testing.B) {
	message := `{"role":"user","content":"` + strings.Repeat("a word ", 50) + `"},`
	body := []byte(`{"model":"auto","stream":true,"messages":[` + strings.Repeat(message, 20) + `{"role":"user","content":"x"}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, twice := Repeated(body); twice {
			b.Fatal("nothing is there twice")
		}
	}
}
