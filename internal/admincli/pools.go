package admincli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

// PoolsCommand is "weir pools": the instances of a running cloud.
func PoolsCommand() cli.Command {
	return cli.Command{Name: "pools", Short: "instances: load, health, roles", Sub: []cli.Command{
		{Name: "status", Short: "what the gateway knows of each instance", Usage: statusUsage, Run: shows("pools status", "pools", printPools)},
		{Name: "arms", Short: "what the answers of equal pools have earned", Usage: statusUsage, Run: shows("pools arms", "arms", printArms)},
		{Name: "answers", Short: "CSV of the scored answers of equal pools", Usage: answersUsage, Run: runAnswers},
		{Name: "role", Short: "change a worker's role while it runs", Usage: roleUsage, Run: runRole},
		{Name: "drain", Short: "let a worker finish what it has and take nothing new", Usage: drainUsage, Run: runDrain},
		{Name: "forget", Short: "take a worker that joined out for good", Usage: forgetUsage, Run: runForget},
	}}
}

const (
	roleUsage  = "INSTANCE mixed|prefill|decode [flags]"
	drainUsage = "INSTANCE [--undo] [flags]"
	drainNote  = "\n\nIt does not wait: it tells how many requests run there still, 'weir pools status' when none does."

	forgetUsage = "INSTANCE [flags]"
)

// instance is what the table shows of one.
type instance struct {
	Name, Model, Role, Problem, Breaker string
	From                                string
	Ready, Suspect, Leaving             bool
	Share                               float64
	AgeMs                               int64  `json:"age_ms"`
	HeartbeatMs                         *int64 `json:"heartbeat_age_ms"`
	Failures                            int
	UntriedMs                           int64 `json:"untried_ms"`
	Failing, Warning                    string
	InFlight                            struct{ Requests int } `json:"in_flight"`
	Moves                               moves
	Last                                *struct {
		Message string
		AgeMs   int64 `json:"age_ms"`
	} `json:"last_failure"`
	Report *struct {
		AgeMs     int64 `json:"age_ms"`
		Running   int
		Waiting   int
		KVTokens  int     `json:"kv_tokens"`
		KVFree    int     `json:"kv_tokens_free"`
		HitRate   float64 `json:"hit_rate"`
		StepMs    float64 `json:"step_ms"`
		Transfers []struct {
			Peer            string
			Pulls, Failures int
			Bytes           int64
			Seconds         float64
		}
	}
}

// moves are streams that the gateway has moved.
type moves struct {
	Gave       map[string]int
	Took       int
	DowntimeMs float64 `json:"downtime_ms"`
}

// left is how many went away.
func (m *moves) left() (n int) {
	for _, k := range m.Gave {
		n += k
	}
	return n
}

func printPools(out io.Writer, answer []byte) error {
	var page struct{ Data []instance }
	if err := json.Unmarshal(answer, &page); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	if len(page.Data) == 0 {
		_, err := fmt.Fprintln(out, "the cloud has no instances")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tMODEL\tROLE\tFROM\tSTATE\tIN FLIGHT\tRUNS+WAITS\tKV\tHITS\tSTEP\tAGE\tBREAKER\tFAILURES\tMOVED")
	for i := range page.Data {
		in := &page.Data[i]
		load, kv, hits, step, age := "-", "-", "-", "-", in.AgeMs
		if r := in.Report; r != nil {
			load, hits, step, age = fmt.Sprintf("%d+%d", r.Running, r.Waiting), fmt.Sprintf("%.0f%%", 100*r.HitRate), fmt.Sprintf("%.1fms", r.StepMs), r.AgeMs
			if r.KVTokens > 0 {
				kv = fmt.Sprintf("%.0f%%", 100*float64(r.KVTokens-r.KVFree)/float64(r.KVTokens))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t-%d+%d\n", oneLine(in.Name), oneLine(in.Model), in.Role, in.from(), in.state(),
			in.InFlight.Requests, load, kv, hits, step, since(age), in.breaker(), in.Failures, in.Moves.left(), in.Moves.Took)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range page.Data {
		page.Data[i].printRest(out)
	}
	return nil
}

// from says who named it, and when the cloud last heard of one that joined.
func (in *instance) from() string {
	if in.HeartbeatMs == nil {
		return in.From
	}
	return fmt.Sprintf("%s %s", in.From, since(*in.HeartbeatMs))
}

// breaker tells of one that is half open how long it has waited for a request.
func (in *instance) breaker() string {
	if in.UntriedMs == 0 {
		return in.Breaker
	}
	return fmt.Sprintf("%s %s untried", in.Breaker, (time.Duration(in.UntriedMs) * time.Millisecond).Round(time.Second))
}

func (in *instance) state() string {
	switch {
	case in.Leaving:
		return "leaving"
	case !in.Ready && in.Failing != "":
		return "failing"
	case !in.Ready:
		return "out"
	case in.Suspect:
		return "suspect"
	case in.Share < 1:
		return fmt.Sprintf("%.0f%%", 100*in.Share) // slow start
	}
	return "ready"
}

// printRest tells what has no place in a table.
func (in *instance) printRest(out io.Writer) {
	if in.Problem != "" {
		fmt.Fprintf(out, "%s: %s\n", oneLine(in.Name), oneLine(in.Problem))
	}
	if in.Failing != "" {
		fmt.Fprintf(out, "%s: degrades: %s\n", oneLine(in.Name), oneLine(in.Failing))
	}
	if in.Warning != "" {
		fmt.Fprintf(out, "%s: warning: %s\n", oneLine(in.Name), oneLine(in.Warning))
	}
	in.Moves.print(out, oneLine(in.Name))
	if in.Last != nil {
		fmt.Fprintf(out, "%s: last failure %s ago: %s\n", oneLine(in.Name), since(in.Last.AgeMs), oneLine(in.Last.Message))
	}
	if in.Report == nil {
		return
	}
	for _, t := range in.Report.Transfers {
		rate := 0.0
		if t.Seconds > 0 {
			rate = float64(t.Bytes) / 1e6 / t.Seconds
		}
		fmt.Fprintf(out, "%s: pulled %d hand-offs (%d failed), %.1f MB from %s, %.0f MB/s\n", oneLine(in.Name), t.Pulls, t.Failures,
			float64(t.Bytes)/1e6, oneLine(t.Peer), rate)
	}
}

func (m *moves) print(out io.Writer, name string) {
	for _, cause := range slices.Sorted(maps.Keys(m.Gave)) {
		if n := m.Gave[cause]; n > 0 {
			fmt.Fprintf(out, "%s: gave %d streams away: %s\n", name, n, oneLine(cause))
		}
	}
	if m.Took > 0 {
		fmt.Fprintf(out, "%s: took %d streams, which stood still for %.0f ms on average\n", name, m.Took, m.DowntimeMs)
	}
}

func since(ms int64) string {
	if ms < 0 {
		return "never"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

func runRole(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("pools role", pflag.ContinueOnError)
	var to target
	to.define(fs)
	if err := cli.ParseFlags(env, fs, roleUsage, args); err != nil {
		return err
	}
	if fs.NArg() != 2 {
		return cli.Usagef("want an instance and a role, got %d arguments: 'weir pools status' lists instances", fs.NArg())
	}
	return orderPool(ctx, env, &to, fs.Arg(0), "role", map[string]any{"role": fs.Arg(1)})
}

func runDrain(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("pools drain", pflag.ContinueOnError)
	var to target
	to.define(fs)
	undo := fs.Bool("undo", false, "take work again")
	if err := cli.ParseFlags(env, fs, drainUsage+drainNote, args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return cli.Usagef("want one instance, got %d: 'weir pools status' lists them", fs.NArg())
	}
	return orderPool(ctx, env, &to, fs.Arg(0), "drain", map[string]any{"draining": !*undo})
}

func runForget(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("pools forget", pflag.ContinueOnError)
	var to target
	to.define(fs)
	if err := cli.ParseFlags(env, fs, forgetUsage, args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return cli.Usagef("want one instance, got %d: 'weir pools status' lists them", fs.NArg())
	}
	if _, err := to.call(ctx, env, http.MethodDelete, "instances/"+url.PathEscape(fs.Arg(0)), nil); err != nil {
		return err
	}
	_, err := fmt.Fprintf(env.Stdout, "%s is a member no more\n", fs.Arg(0))
	return err
}

func orderPool(ctx context.Context, env cli.Env, to *target, name, verb string, body map[string]any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	answer, err := to.call(ctx, env, http.MethodPost, "pools/"+url.PathEscape(name)+"/"+verb, data)
	if err != nil {
		return err
	}
	var object map[string]any
	if err := decode(answer, &object); err != nil {
		return err
	}
	return printObject(env.Stdout, []string{"instance", "role", "draining", "requests"}, object)
}
