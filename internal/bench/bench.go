// Package bench is the command "weir bench": suites that measure side by side
// in one run and end with one line per bar.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

// Direction says on which side of its bound a figure should lie.
type Direction string

// Directions of a bar. A bar without one is printed for information.
const (
	AtLeast Direction = ">="
	AtMost  Direction = "<="
	Info    Direction = ""
)

// Bar is one measured figure with its bound.
type Bar struct {
	Name     string    `json:"name"` // lower case with dots, e.g. "engine.loop.b8"
	Measured float64   `json:"measured"`
	Unit     string    `json:"unit,omitempty"` // "ratio", "ms", "tok/s"
	Want     Direction `json:"want,omitempty"`
	Bound    float64   `json:"bound,omitempty"`
	// Missing says what a bar lacks that could not be measured.
	Missing string `json:"missing,omitempty"`
}

// Unmeasured returns the bars without figures, for want of what is missing.
func Unmeasured(missing string, bars ...Bar) []Bar {
	for i := range bars {
		bars[i].Missing = missing
	}
	return bars
}

// OK reports whether the bar is met. A figure for information always is, one
// that was not measured never.
func (b Bar) OK() bool {
	if b.Missing != "" {
		return false
	}
	switch b.Want {
	case AtLeast:
		return b.Measured >= b.Bound
	case AtMost:
		return b.Measured <= b.Bound
	}
	return true
}

// String is the bar's line: BAR name measured bound ok|MISS, or, without a
// figure, BAR name - bound not-measured.
func (b Bar) String() string {
	verdict := "ok"
	if !b.OK() {
		verdict = "MISS"
	}
	bound := "-"
	if b.Want != Info {
		bound = fmt.Sprintf("%s%g", b.Want, b.Bound)
	}
	if b.Missing != "" {
		return fmt.Sprintf("BAR %s - %s not-measured", b.Name, bound)
	}
	return fmt.Sprintf("BAR %s %.4g%s %s %s", b.Name, b.Measured, b.Unit, bound, verdict)
}

// Env is what suites work with.
type Env struct {
	Out    io.Writer // progress and tables
	Dir    string    // scratch folder, removed afterwards
	Lib    string    // --lib
	Data   string    // folder with recorded data for the suites that need it, "" for none
	Getenv func(string) string
}

// Suite is a group of bars that are measured together.
type Suite struct {
	Name, Short string
	Run         func(ctx context.Context, env Env) ([]Bar, error)
}

// Result is the JSON form of a run.
type Result struct {
	Date    time.Time `json:"date"`
	Machine string    `json:"machine"`
	Bars    []Bar     `json:"bars"`
}

const usage = "[--suite NAME,...] [--json-out F]"

// Command is "weir bench" over suites.
func Command(suites []Suite) cli.Command {
	return cli.Command{Name: "bench", Short: "measure the bars of this build on this machine", Usage: usage,
		Run: func(ctx context.Context, env cli.Env, args []string) error { return run(ctx, env, suites, args) }}
}

func run(ctx context.Context, env cli.Env, suites []Suite, args []string) error {
	var names []string
	for _, s := range suites {
		names = append(names, s.Name)
	}
	fs := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	chosen := fs.StringSlice("suite", names, "suites to run")
	jsonOut := fs.String("json-out", "", "also write the bars there as JSON")
	lib := fs.String("lib", "", "folder of llama.cpp's libraries")
	data := fs.String("data", "", "folder of recorded loads and traces (suites that need it say so)")
	if err := cli.ParseFlags(env, fs, usage, args); err != nil {
		return err
	}
	for _, name := range *chosen {
		if !slices.Contains(names, name) {
			return cli.Usagef("no suite %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(dir)
	r := Result{Date: time.Now().UTC(), Machine: machine()}
	benchEnv := Env{Out: env.Stdout, Dir: dir, Lib: *lib, Data: *data, Getenv: env.Getenv}
	var failed []error
	for _, s := range suites {
		if !slices.Contains(*chosen, s.Name) {
			continue
		}
		fmt.Fprintf(env.Stdout, "== %s: %s\n", s.Name, s.Short)
		bars, err := s.Run(ctx, benchEnv)
		r.Bars = append(r.Bars, bars...)
		if err != nil {
			err = fmt.Errorf("suite %s: %w", s.Name, err)
			fmt.Fprintln(env.Stdout, err)
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(failed, r.publish(env.Stdout, *jsonOut))...)
}

func (r Result) publish(w io.Writer, jsonOut string) error {
	fmt.Fprintf(w, "\n%s, %s\n", r.Date.Format(time.DateOnly), r.Machine)
	missed := 0
	lacking := map[string]bool{}
	for _, b := range r.Bars {
		fmt.Fprintln(w, b)
		switch {
		case b.Missing != "":
			lacking[b.Missing] = true
		case !b.OK():
			missed++
		}
	}
	for _, what := range slices.Sorted(maps.Keys(lacking)) {
		fmt.Fprintln(w, "not measured:", what)
	}
	if jsonOut != "" {
		data, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return fmt.Errorf("bars as JSON: %w", err)
		}
		if err := os.MkdirAll(filepath.Dir(jsonOut), 0o755); err != nil {
			return fmt.Errorf("--json-out: %w", err)
		}
		if err := os.WriteFile(jsonOut, append(data, '\n'), 0o644); err != nil {
			return fmt.Errorf("--json-out: %w", err)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d bars missed", missed, len(r.Bars))
	}
	return nil
}

// machine describes this machine in one line.
func machine() string {
	return fmt.Sprintf("%s/%s, %d cores, %s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), cpuModel(), runtime.Version())
}

func cpuModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(data)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
			}
		}
	}
	return "unknown processor"
}
