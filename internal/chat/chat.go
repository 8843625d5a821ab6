// Package chat is the command "weir chat": one question to a running system,
// with the tier that answered, the reason and the confidence.
package chat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/up"
)

const usage = `[flags] "turn on the kitchen light"   ("-" reads the prompt from stdin)`

// maxPrompt bounds a prompt from stdin, in bytes.
const maxPrompt = 16 << 20

// Command is "weir chat".
func Command() cli.Command {
	return cli.Command{Name: "chat", Short: "ask a running system and see which tier answered", Usage: usage, Run: run}
}

func run(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("chat", pflag.ContinueOnError)
	mode := fs.String("mode", "", "auto, edge-only, cloud-only, prefer-edge or prefer-cloud")
	model := fs.String("model", "auto", "model name, see GET /v1/models")
	readyFile := fs.String("ready-file", "", "ready file of 'weir up' (default: the one in its data directory)")
	url := fs.String("url", "", "base URL instead of the ready file's edge; the key is then read from WEIR_API_KEY")
	timeout := fs.Duration("timeout", time.Minute, "longest wait for the whole answer; 0 is no limit")
	if err := cli.ParseFlags(env, fs, usage, args); err != nil {
		return err
	}
	if *mode != "" {
		if _, err := cascade.ParseMode(*mode); err != nil {
			return cli.Usagef("--mode: %s", err)
		}
	}
	if *timeout < 0 {
		return cli.Usagef("--timeout %s: it must not be negative", *timeout)
	}
	prompt := strings.Join(fs.Args(), " ")
	if prompt == "-" {
		text, err := io.ReadAll(io.LimitReader(env.Stdin, maxPrompt))
		if err != nil {
			return fmt.Errorf("read the prompt: %w", err)
		}
		prompt = strings.TrimSpace(string(text))
	}
	if prompt == "" {
		return cli.Usagef("a prompt is missing: weir chat %s", usage)
	}
	c, err := connect(env, *url, *readyFile)
	if err != nil {
		return err
	}
	if *timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *timeout)
		defer cancel()
	}
	a, err := c.Chat(ctx, client.Request{Model: *model, Prompt: prompt, Mode: *mode},
		func(s string) { fmt.Fprint(env.Stdout, s) })
	if err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout)
	fmt.Fprintln(env.Stderr, describe(a))
	return nil
}

// connect chooses the address and the key.
func connect(env cli.Env, url, readyFile string) (*client.Client, error) {
	c := &client.Client{URL: url, Key: env.Getenv("WEIR_API_KEY"), HTTP: &http.Client{}}
	if url != "" {
		if c.Key == "" {
			return nil, errors.New("--url needs the API key in WEIR_API_KEY")
		}
		return c, nil
	}
	if readyFile == "" {
		dir, err := up.DefaultData(env.Getenv)
		if err != nil {
			return nil, err
		}
		readyFile = filepath.Join(dir, up.ReadyName)
	}
	r, err := client.ReadReady(readyFile)
	if err != nil {
		return nil, err
	}
	c.URL, c.Key = r.EdgeURL, r.AppKey
	return c, nil
}

func describe(a *client.Answer) string {
	confidence := "unknown"
	if a.Weir.Confidence != nil {
		confidence = fmt.Sprintf("%.3f", *a.Weir.Confidence)
	}
	return fmt.Sprintf("tier %s · model %s · reason %s · confidence %s · first token %.1f ms · total %.1f ms",
		a.Weir.Tier, a.Model, a.Weir.Reason, confidence, ms(a.TTFT), ms(a.Total))
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
