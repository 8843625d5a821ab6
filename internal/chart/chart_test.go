package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSVG(t *testing.T) {
	c := Chart{Title: `a < b & "c"`, X: "moves", Y: "imbalance", Marks: []Mark{{2, "now"}}, Series: []Series{
		{"alone", []Point{{X: 0, Y: 1.4}, {X: 4, Y: 1.1, Low: 1.05, High: 1.2, Label: "best"}}},
		{"empty", nil},
	}}
	svg := c.SVG()
	d := xml.NewDecoder(bytes.NewReader(svg))
	elements := map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok {
			elements[e.Name.Local]++
		}
	}
	if elements["circle"] != 2 || elements["g"] != 2 {
		t.Errorf("elements %v", elements)
	}
	for _, want := range []string{"moves", "imbalance", "best", "now", "alone", "a &lt; b &amp; "} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("no %q", want)
		}
	}
	path := filepath.Join(t.TempDir(), "figures", "x.svg")
	if err := c.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, svg) {
		t.Errorf("file: %v", err)
	}
}

// An axis covers its values with three to eleven round ticks.
func TestAxis(t *testing.T) {
	for _, values := range [][]float64{{0, 1}, {1, 1}, {}, {1.003, 1.4}, {-5, 100}, {96.5, 98}, {1e-4, 2e-4}, {0, 1e9}} {
		a := newAxis(values, 0, 100)
		for _, v := range values {
			if v < a.lo-1e-12 || v > a.hi+1e-6 {
				t.Errorf("%v: %v is off the axis %+v", values, v, a)
			}
		}
		if n := len(a.ticks()); n < 3 || n > 11 {
			t.Errorf("%v: %d ticks", values, n)
		}
		if got := a.at(a.hi); math.Abs(got-100) > 1e-9 {
			t.Errorf("%v: the end is at %v", values, got)
		}
	}
}
