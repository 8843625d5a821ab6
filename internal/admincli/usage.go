package admincli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

var usageFields = append([]field{
	{"tenant_id", "only this tenant's", text}, {"key_id", "only this key's", text}, {"model", "only this model's", text}, {"tier", "edge or cloud", text},
	{"class", "only this SLO class's", text}, {"outcome", "such as ok", text}, {"device_id", "only this device's", text},
	{"operation_id", "the attempts of one request", text}, {"group_by", "some of tenant_id,key_id,tier,model,class,outcome", text},
	{"bucket", "minute, hour, day or month", text}, {"tz", "zone of days and months, such as Europe/Paris", text},
	{"limit", "attempts to list (default 0: sums only)", number}, {"after", "cursor of the next page of attempts", text},
}, period...)

var (
	groupColumns = []string{"at", "tenant_id", "key_id", "tier", "model", "class", "outcome", "requests", "attempts", "input_tokens",
		"cached_tokens", "output_tokens", "cost_nanousd"}
	rowColumns = []string{"started_at", "operation_id", "attempt", "key_id", "tier", "model", "class", "outcome", "input_tokens", "output_tokens", "cost_nanousd", "total_us"}
)

const usageUsage = "[flags]"

func usageCommand() cli.Command {
	return cli.Command{Name: "usage", Short: "sums of usage, single attempts, CSV", Usage: usageUsage, Run: runUsage}
}

func runUsage(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("usage", pflag.ContinueOnError)
	for _, f := range usageFields {
		f.define(fs)
	}
	var to target
	to.define(fs)
	asJSON := fs.Bool("json", false, "print the answer as JSON")
	csv := fs.String("csv", "", "print CSV of all: attempts or sums")
	if err := cli.ParseFlags(env, fs, usageUsage, args); err != nil {
		return err
	}
	v := verb{method: http.MethodGet, path: "usage", query: usageFields}
	switch *csv {
	case "":
		if !fs.Lookup("limit").Changed {
			_ = fs.Set("limit", "0") // a number always parses
		}
	case "attempts":
		v.path = "usage.csv"
	case "sums":
		v.path = "usage-sums.csv"
	default:
		return cli.Usagef("--csv: want attempts or sums, got %q", *csv)
	}
	path, err := v.fill(fs)
	if err != nil {
		return err
	}
	if *csv != "" {
		return to.stream(ctx, env, http.MethodGet, path, nil, env.Stdout)
	}
	answer, err := to.call(ctx, env, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(env.Stdout, answer)
	}
	return printUsage(env, answer)
}

func printUsage(env cli.Env, answer []byte) error {
	var u struct {
		From, To     string
		Totals       map[string]any
		Groups, Rows []map[string]any
		Next         string
	}
	if err := decode(answer, &u); err != nil {
		return err
	}
	cost, _ := u.Totals["cost_nanousd"].(json.Number)
	nano, _ := cost.Int64()
	fmt.Fprintf(env.Stdout, "%s to %s: %v requests, %v attempts, %v tokens in, %v out, $%.6f\n\n", u.From, u.To,
		u.Totals["requests"], u.Totals["attempts"], u.Totals["input_tokens"], u.Totals["output_tokens"], float64(nano)/1e9)
	if len(u.Groups) > 0 {
		if err := printRows(env.Stdout, groupColumns, u.Groups); err != nil {
			return err
		}
	}
	if len(u.Rows) > 0 {
		fmt.Fprintln(env.Stdout, strings.Repeat("-", 20))
		if err := printRows(env.Stdout, rowColumns, u.Rows); err != nil {
			return err
		}
	}
	if u.Next != "" {
		fmt.Fprintf(env.Stderr, "there are more attempts: --after %s\n", u.Next)
	}
	return nil
}
