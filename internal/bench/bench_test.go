package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/cli"
)

func TestBarLine(t *testing.T) {
	tests := []struct {
		bar  Bar
		want string
	}{
		{Bar{Name: "a.b", Measured: 0.912, Want: AtLeast, Bound: 0.85}, "BAR a.b 0.912 >=0.85 ok"},
		{Bar{Name: "a", Measured: 0.8, Want: AtLeast, Bound: 0.85}, "BAR a 0.8 >=0.85 MISS"},
		{Bar{Name: "t", Measured: 2, Unit: "ms", Want: AtMost, Bound: 2}, "BAR t 2ms <=2 ok"},
		{Bar{Name: "t", Measured: 2.1, Unit: "ms", Want: AtMost, Bound: 2}, "BAR t 2.1ms <=2 MISS"},
		{Bar{Name: "i", Measured: 7, Unit: "tok/s"}, "BAR i 7tok/s - ok"},
		{Bar{Name: "m", Want: AtMost, Bound: 2, Missing: "needs --data"}, "BAR m - <=2 not-measured"},
	}
	for _, tt := range tests {
		if got := tt.bar.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestCommand(t *testing.T) {
	suites := []Suite{
		{"broken", "", func(context.Context, Env) ([]Bar, error) { return nil, errors.New("no disk") }},
		{"good", "", func(context.Context, Env) ([]Bar, error) {
			return []Bar{{Name: "g", Measured: 1, Want: AtLeast, Bound: 1}}, nil
		}},
		{"bad", "", func(context.Context, Env) ([]Bar, error) {
			return []Bar{{Name: "b", Want: AtLeast, Bound: 1}}, nil
		}},
		{"blind", "", func(context.Context, Env) ([]Bar, error) {
			return Unmeasured("needs --data", Bar{Name: "d", Want: AtLeast, Bound: 1}), nil
		}},
	}
	var out bytes.Buffer
	env := cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
	table := []cli.Command{Command(suites)}
	file := filepath.Join(t.TempDir(), "sub", "bars.json")
	if code := cli.Main(context.Background(), env, table, []string{"bench", "--suite", "good", "--json-out", file}); code != 0 {
		t.Fatalf("exit %d: %s", code, out.String())
	}
	var r Result
	if data, err := os.ReadFile(file); err != nil || json.Unmarshal(data, &r) != nil || len(r.Bars) != 1 {
		t.Errorf("JSON %+v, %v", r, err)
	}
	if code := cli.Main(context.Background(), env, table, []string{"bench", "--suite", "good,blind"}); code != 0 {
		t.Errorf("a bar that was not measured gave exit %d: %s", code, out.String())
	}
	code := cli.Main(context.Background(), env, table, []string{"bench"})
	for _, want := range []string{"no disk", "BAR g 1 >=1 ok", "BAR d - >=1 not-measured", "not measured: needs --data", "1 of 3 bars missed"} {
		if code != 1 || !strings.Contains(out.String(), want) {
			t.Errorf("exit %d, without %q: %s", code, want, out.String())
		}
	}
	if code := cli.Main(context.Background(), env, table, []string{"bench", "--suite", "x"}); code != 2 {
		t.Errorf("an unknown suite gave exit %d", code)
	}
}
