package replay

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/cascade/explain"
	"github.com/weirhq/weir/internal/cli"
)

// EvalCommand is `weir cascade eval`: policies on a file of outcomes.
func EvalCommand() cli.Command {
	return cli.Command{Name: "eval", Short: "evaluate policies offline on a file of outcomes",
		Usage: "--data FILE --policy NAME[,NAME] [flags]", Run: runEval}
}

func runEval(_ context.Context, env cli.Env, args []string) error {
	o := DefaultOptions()
	var data, log, answers, html, svg string
	var faults []string
	var asJSON bool
	var cols Columns
	fs := pflag.NewFlagSet("cascade eval", pflag.ContinueOnError)
	fs.StringVar(&data, "data", "", "file of outcomes: CSV or JSON, packed by gzip or zip or not")
	fs.StringVar(&log, "log", "", "instead of --data: folder with a node's decision log; estimates from logged propensities")
	fs.StringVar(&answers, "answers", "", "instead of --data: scored answers of equal pools, as 'weir pools answers' writes them; estimates of always each pool")
	fs.StringSliceVar(&faults, "fault", nil, "what goes wrong in the stream (rows): "+faultUsage)
	fs.StringSliceVar(&o.Policies, "policy", o.Policies, "policies: "+strings.Join(PolicyNames(), ", "))
	fs.BoolVar(&asJSON, "json", false, "write JSON")
	fs.StringVar(&html, "html", "", "also write a page with plots to this file")
	fs.StringVar(&svg, "svg", "", "also write the plots into this folder")
	fs.Float64Var(&o.Rate, "rate", o.Rate, "target share of escalations")
	fs.Float64Var(&o.Alpha, "risk-alpha", o.Alpha, "risk that the risk policy keeps to")
	fs.Float64Var(&o.Delta, "risk-delta", o.Delta, "probability with which it may fail")
	fs.Float64Var(&o.DeadlineMS, "deadline-ms", 0, "deadline of each request; the cloud is asked only where it is likely to keep it")
	fs.IntVar(&o.Bootstrap, "bootstrap", o.Bootstrap, "paired resamples for intervals; 0 for none")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "seed of resamples and folds")
	columnFlags(fs, &cols)
	if err := cli.ParseFlags(env, fs, "--data FILE --policy NAME[,NAME] [flags]", args); err != nil {
		return err
	}
	switch {
	case data != "":
	case log != "":
		return evalLog(env, log, asJSON)
	case answers != "":
		return evalAnswers(env, answers, asJSON)
	}
	if err := checkOptions(data, fs.Args(), o); err != nil {
		return err
	}
	for _, f := range faults {
		fault, err := ParseFault(f)
		if err != nil {
			return cli.Usagef("--fault: %v", err)
		}
		o.Faults = append(o.Faults, fault)
	}
	return evalData(env, data, cols, o, output{asJSON, html, svg})
}

func evalLog(env cli.Env, dir string, asJSON bool) error {
	l, err := OpenLog(dir)
	if err != nil {
		return err
	}
	return l.Write(env.Stdout, asJSON)
}

func evalAnswers(env cli.Env, path string, asJSON bool) error {
	all, err := OpenScored(path)
	if err != nil {
		return err
	}
	return writeScored(env.Stdout, all, asJSON)
}

// output says where results go, beside standard output.
type output struct {
	json      bool
	html, svg string
}

func evalData(env cli.Env, data string, cols Columns, o Options, out output) error {
	d, err := Open(data, cols)
	if err != nil {
		return err
	}
	res, err := Evaluate(d, o)
	if err != nil {
		return err
	}
	if err := res.useful(); err != nil {
		return err
	}
	if out.html != "" {
		if err := writeFile(out.html, res.WriteHTML); err != nil {
			return err
		}
	}
	if out.svg != "" {
		if err := res.WriteSVG(out.svg); err != nil {
			return err
		}
	}
	if out.json {
		return res.WriteJSON(env.Stdout)
	}
	return res.WriteText(env.Stdout)
}

func columnFlags(fs *pflag.FlagSet, c *Columns) {
	for _, f := range c.fields() {
		fs.StringVar(f.to, f.flag, "", "column: "+f.about)
	}
	fs.StringVar(&c.Set, "set", "", "name of the set where the file has no tasks")
}

// maxDeadlineMS is a day.
const maxDeadlineMS = 24 * 3600 * 1000

func checkOptions(data string, rest []string, o Options) error {
	switch {
	case data == "":
		return cli.Usagef("--data is missing: name a file of outcomes")
	case len(rest) > 0:
		return cli.Usagef("unexpected argument %q", rest[0])
	case !(o.Rate > 0 && o.Rate < 1):
		return cli.Usagef("--rate is %v, want between 0 and 1", o.Rate)
	case !(o.Alpha > 0 && o.Alpha < 1) || !(o.Delta > 0 && o.Delta < 1):
		return cli.Usagef("--risk-alpha and --risk-delta must lie between 0 and 1")
	case !(o.DeadlineMS >= 0) || o.DeadlineMS > maxDeadlineMS:
		return cli.Usagef("--deadline-ms is %v, want 0 to %d", o.DeadlineMS, maxDeadlineMS)
	case o.Bootstrap < 0 || o.Bootstrap > 100_000:
		return cli.Usagef("--bootstrap is %d, want 0 to 100000", o.Bootstrap)
	}
	for i, name := range o.Policies {
		name = strings.TrimSpace(name)
		o.Policies[i] = name
		if _, err := policyByName(name); err != nil {
			return cli.Usagef("--policy: %v", err)
		}
	}
	return nil
}

// useful is an error when no policy could be applied to any set.
func (r *Result) useful() error {
	if r.Summary != nil {
		return nil
	}
	for _, s := range r.Sets {
		if len(s.Policies) > 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", ErrNotApplicable, strings.Join(r.Skipped, "; "))
}

// writeFile writes by a temporary file and a rename, so that a failure leaves
// no half file.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".weir-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Chmod(0o644); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Command is `weir cascade` with its subcommands.
func Command() cli.Command {
	return cli.Command{Name: "cascade", Short: "evaluate, calibrate and explain cascade decisions",
		Sub: []cli.Command{EvalCommand(), CalibrateCommand(), explain.Command()}}
}
