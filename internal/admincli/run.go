package admincli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

func (n noun) command(v verb) cli.Command {
	usage := strings.TrimSpace(v.arg + " [flags]")
	return cli.Command{Name: v.name, Short: v.short, Usage: usage, Run: func(ctx context.Context, env cli.Env, args []string) error {
		fs := pflag.NewFlagSet(n.name+" "+v.name, pflag.ContinueOnError)
		fields := append(slices.Clone(v.body), v.query...)
		for _, f := range fields {
			f.define(fs)
		}
		var to target
		to.define(fs)
		asJSON := fs.Bool("json", false, "print the answer as JSON")
		if err := cli.ParseFlags(env, fs, usage, args); err != nil {
			return err
		}
		path, err := v.fill(fs)
		if err != nil {
			return err
		}
		body, err := v.bodyOf(fs)
		if err != nil {
			return err
		}
		answer, err := to.call(ctx, env, v.method, path, body)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(env.Stdout, answer)
		}
		return printTable(env, n.columns, answer)
	}}
}

// flagName makes tenant_id into tenant-id.
func flagName(member string) string { return strings.ReplaceAll(member, "_", "-") }

func (f field) define(fs *pflag.FlagSet) {
	name := flagName(f.member)
	if f.kind == yesNo {
		fs.Bool(name, false, f.usage)
		return
	}
	fs.String(name, "", f.usage)
}

// fill puts the argument and the parameters into the path.
func (v verb) fill(fs *pflag.FlagSet) (string, error) {
	want := 0
	if v.arg != "" {
		want = 1
	}
	if fs.NArg() != want {
		return "", cli.Usagef("want %d arguments, got %d: see 'weir %s --help'", want, fs.NArg(), fs.Name())
	}
	path := v.path
	if want == 1 {
		path = strings.Replace(path, "{id}", url.PathEscape(fs.Arg(0)), 1)
	}
	q := url.Values{}
	for _, f := range v.query {
		if fl := fs.Lookup(flagName(f.member)); fl.Changed {
			q.Set(f.member, fl.Value.String())
		}
	}
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return path, nil
}

// bodyOf makes the body of the flags that were given; nil for calls that have
// none.
func (v verb) bodyOf(fs *pflag.FlagSet) ([]byte, error) {
	if v.method == "GET" || v.method == "DELETE" {
		return nil, nil
	}
	body := map[string]any{}
	for _, f := range v.body {
		fl := fs.Lookup(flagName(f.member))
		if !fl.Changed {
			continue
		}
		value, err := f.value(fl.Value.String())
		if err != nil {
			return nil, cli.Usagef("--%s: %s", flagName(f.member), err)
		}
		body[f.member] = value
	}
	return json.Marshal(body)
}

func (f field) value(s string) (any, error) {
	switch f.kind {
	case number:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("want a whole number, got %q", s)
		}
		return n, nil
	case fraction:
		x, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return nil, fmt.Errorf("want a number, got %q", s)
		}
		return x, nil
	case yesNo:
		return s == "true", nil
	case names:
		out := []string{}
		for _, n := range strings.Split(s, ",") {
			if n = strings.TrimSpace(n); n != "" {
				out = append(out, n)
			}
		}
		return out, nil
	case object:
		if !json.Valid([]byte(s)) {
			return nil, fmt.Errorf("want a JSON object")
		}
		return json.RawMessage(s), nil
	}
	if s == "never" && f.member == "expires_at" {
		return nil, nil
	}
	return s, nil
}
