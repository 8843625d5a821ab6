// Package explain is `weir cascade explain`: why a request went where it went.
package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/up"
)

const usage = "REQUEST_ID [--url URL | --ready-file F | --log DIR]"

// maxAnswer bounds the body that is read, bytes.
const maxAnswer = 1 << 20

// Command explains a request by the edge node or gateway that decided it, or by a node's log.
func Command() cli.Command {
	return cli.Command{Name: "explain", Short: "Explain the decision on a request", Usage: usage, Run: run}
}

func run(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("cascade explain", pflag.ContinueOnError)
	base := fs.String("url", "", "base URL of an edge node or gateway; the key is then read from WEIR_API_KEY")
	ready := fs.String("ready-file", "", "ready file of 'weir up' (default: the one in its data directory)")
	log := fs.String("log", "", "read a node's decision log in this folder instead")
	timeout := fs.Duration("timeout", 10*time.Second, "longest wait")
	if err := cli.ParseFlags(env, fs, usage, args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return cli.Usagef("name one request: its id is in X-Request-Id")
	}
	id := fs.Arg(0)
	if *log != "" {
		return fromLog(env.Stdout, *log, id)
	}
	targets, key, err := connect(env, *base, *ready)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	body, err := ask(ctx, targets, key, id)
	if err != nil {
		return err
	}
	return write(env.Stdout, body)
}

// ask asks one after another until one knows the request; the error tells what
// each said.
func ask(ctx context.Context, targets []string, key, id string) ([]byte, error) {
	var all error
	for _, target := range targets {
		body, err := fetch(ctx, target, key, id)
		if err == nil {
			return body, nil
		}
		all = errors.Join(all, fmt.Errorf("%s: %w", target, err))
	}
	return nil, all
}

// connect names who may know the request, first the edge node.
func connect(env cli.Env, base, readyFile string) (targets []string, key string, err error) {
	if base != "" {
		if key = env.Getenv("WEIR_API_KEY"); key == "" {
			return nil, "", errors.New("--url needs the API key in WEIR_API_KEY")
		}
		return []string{base}, key, nil
	}
	if readyFile == "" {
		dir, err := up.DefaultData(env.Getenv)
		if err != nil {
			return nil, "", err
		}
		readyFile = filepath.Join(dir, up.ReadyName)
	}
	r, err := client.ReadReady(readyFile)
	if err != nil {
		return nil, "", err
	}
	if targets = []string{r.EdgeURL}; r.CloudURL != "" { // older files do not have it
		targets = append(targets, r.CloudURL)
	}
	return targets, r.AppKey, nil
}

func fetch(ctx context.Context, base, key, id string) ([]byte, error) {
	at, err := url.JoinPath(base, "v1/weir/requests", url.PathEscape(id))
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the explanation: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the node answers %d: %s", resp.StatusCode, message(body))
	}
	return body, nil
}

// message is the text of an OpenAI-style error, or what else was answered.
func message(body []byte) string {
	var e struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return strings.TrimSpace(string(body[:min(len(body), 200)]))
}

func write(w io.Writer, body []byte) error {
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(body), "", "  "); err != nil {
		return fmt.Errorf("the node answered no JSON: %w", err)
	}
	out.WriteByte('\n')
	_, err := w.Write(out.Bytes())
	return err
}

func fromLog(w io.Writer, dir, id string) error {
	found, ok, err := journal.Find(dir, id)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("request %q is not in the log any more", id)
	}
	body, err := json.Marshal(&found)
	if err != nil {
		return err
	}
	return write(w, body)
}
