package bench

import (
	"bytes"
	"context"
	"encoding/json"
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
		{Bar{"a.b", 0.912, "", AtLeast, 0.85}, "BAR a.b 0.912 >=0.85 ok"},
		{Bar{"a", 0.8, "", AtLeast, 0.85}, "BAR a 0.8 >=0.85 MISS"},
		{Bar{"t", 2, "ms", AtMost, 2}, "BAR t 2ms <=2 ok"},
		{Bar{"t", 2.1, "ms", AtMost, 2}, "BAR t 2.1ms <=2 MISS"},
		{Bar{"i", 7, "tok/s", Info, 0}, "BAR i 7tok/s - ok"},
	}
	for _, tt := range tests {
		if got := tt.bar.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestCommand(t *testing.T) {
	suites := []Suite{
		{"good", "", func(context.Context, Env) ([]Bar, error) { return []Bar{{"g", 1, "", AtLeast, 1}}, nil }},
		{"bad", "", func(context.Context, Env) ([]Bar, error) { return []Bar{{"b", 0, "", AtLeast, 1}}, nil }},
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
	if code := cli.Main(context.Background(), env, table, []string{"bench"}); code != 1 || !strings.Contains(out.String(), "1 of 2 bars missed") {
		t.Errorf("a missed bar gave exit %d: %s", code, out.String())
	}
	if code := cli.Main(context.Background(), env, table, []string{"bench", "--suite", "x"}); code != 2 {
		t.Errorf("an unknown suite gave exit %d", code)
	}
}
