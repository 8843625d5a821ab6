package admincli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/internal/cli"
)

// ExpertsCommands read and move the experts of a running cloud's instances;
// they stand under "weir experts".
func ExpertsCommands() []cli.Command {
	return []cli.Command{
		{Name: "status", Short: "where the experts of each instance are, and the load of shards", Usage: statusUsage, Run: shows("experts status", "experts", printExperts)},
		{Name: "rebalance", Short: "let an instance move experts now", Usage: rebalanceUsage, Run: runRebalance},
	}
}

const rebalanceUsage = "INSTANCE [--dry-run] [flags]"

func printExperts(w io.Writer, answer []byte) error {
	var page struct {
		Data []struct {
			Instance, Model, Role, Problem string
			Experts                        *moe.Status
		}
	}
	if err := json.Unmarshal(answer, &page); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	for i, in := range page.Data {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s  %s  %s", in.Instance, in.Model, in.Role)
		if in.Experts == nil {
			fmt.Fprintf(w, "  %s\n", in.Problem)
			continue
		}
		printPlaced(w, in.Experts)
	}
	if len(page.Data) == 0 {
		fmt.Fprintln(w, "the cloud has no instances")
	}
	return nil
}

func printPlaced(w io.Writer, s *moe.Status) {
	fmt.Fprintf(w, "  generation %d, %d windows, %d moves, %d failed, %.1f MB copied\n", s.Generation, s.Windows, s.Moves, s.Failures, float64(s.Copied)/1e6)
	for i, sh := range s.Shards {
		lost := ""
		if sh.Lost {
			lost = "  LOST"
		}
		fmt.Fprintf(w, "  shard %d: %d slots, %.1f MB, %d tokens%s\n", i, sh.Slots, float64(sh.Bytes)/1e6, sh.Sent, lost)
	}
	if s.Window != nil && len(s.Imbalance) == len(s.Placement) {
		printLayers(w, s)
	}
	if n := len(s.Decisions); n > 0 {
		fmt.Fprintf(w, "  latest: %s\n", decided(s.Decisions[n-1]))
	}
}

// printLayers draws the load of shards in the latest window.
func printLayers(w io.Writer, s *moe.Status) {
	p := plan.Placement{Experts: s.Experts, Layers: s.Placement}
	for _, sh := range s.Shards {
		p.Fleet.Slots = append(p.Fleet.Slots, sh.Slots)
	}
	fmt.Fprintf(w, "  window of %d tokens: imbalance %.3f on average, %.3f at most\n", s.Window.Tokens, s.Mean, s.Worst)
	for l, x := range s.Imbalance {
		fmt.Fprintf(w, "  layer %3d  %7.3f  %-20s  %s\n", l, x, experts.Bar(x), experts.Columns(p.DeviceLoads(l, s.Window.Demand[l])))
	}
}

func decided(d rebalance.Decision) string {
	out := fmt.Sprintf("%s (%s), imbalance %.3f", d.Action, d.Reason, d.Now)
	if d.Transfers > 0 {
		out += fmt.Sprintf(", target %.3f, %d transfers in %d layers", d.Target, d.Transfers, d.Layers)
	}
	return out
}

func runRebalance(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("experts rebalance", pflag.ContinueOnError)
	var to target
	to.define(fs)
	dry := fs.Bool("dry-run", false, "only say what would be done")
	asJSON := fs.Bool("json", false, "print the answer as JSON")
	if err := cli.ParseFlags(env, fs, rebalanceUsage, args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return cli.Usagef("want one instance, got %d: 'weir experts status' lists them", fs.NArg())
	}
	verb := "rebalance"
	if *dry {
		verb = "plan"
	}
	answer, err := to.call(ctx, env, http.MethodPost, "experts/"+url.PathEscape(fs.Arg(0))+"/"+verb, []byte("{}"))
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(env.Stdout, answer)
	}
	var got struct {
		Instance string
		Decision rebalance.Decision
		Error    string
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	fmt.Fprintf(env.Stdout, "%s: %s\n", got.Instance, decided(got.Decision))
	if got.Error != "" {
		return fmt.Errorf("the move failed, the old placement is in force: %s", got.Error)
	}
	return nil
}
