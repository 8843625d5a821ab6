package enginebench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/sse"

	"golang.org/x/sync/errgroup"
)

const (
	httpBatch = 8
	httpSteps = 64
)

// httpRate is what a worker process streams to clients: eight at a time, over
// HTTP, from the last first token to the first end. It is a figure of its own,
// not compared with anything.
func httpRate(ctx context.Context, env bench.Env, arch, path, libDir string) (bench.Bar, error) {
	none := bench.Bar{}
	exe, err := os.Executable()
	if err != nil {
		return none, err
	}
	addr, err := freeAddr()
	if err != nil {
		return none, err
	}
	var log bytes.Buffer
	child, err := proc.Start(proc.Spec{Name: "worker", Path: exe, Output: &log,
		Args: []string{"worker", "--model", path, "--listen", addr, "--threads", "1", "--lib", libDir, "--ctx", fmt.Sprint(seqContext), "--max-seqs", fmt.Sprint(httpBatch)}})
	if err != nil {
		return none, err
	}
	defer child.Stop(5 * time.Second)
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = waitUntil(ready, func() bool {
		resp, err := http.Get("http://" + addr + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if err != nil {
		return none, fmt.Errorf("worker: %w: %s", err, log.String())
	}
	rate, err := streamAll(ctx, addr, arch)
	if err != nil {
		return none, err
	}
	fmt.Fprintf(env.Out, "%-9s batch %2d: %7.1f tok/s through a worker's HTTP streams\n", arch, httpBatch, rate)
	return bench.Bar{Name: fmt.Sprintf("engine.%s.b%d.http", arch, httpBatch), Measured: rate, Unit: "tok/s"}, nil
}

// span is when a stream had its first and its last token, and how many.
type span struct {
	first, last time.Time
	tokens      int
}

func streamAll(ctx context.Context, addr, model string) (float64, error) {
	spans := make([]span, httpBatch)
	g, ctx := errgroup.WithContext(ctx)
	for i := range spans {
		g.Go(func() (err error) {
			spans[i], err = streamOne(ctx, addr, model)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	var rate float64
	for _, s := range spans {
		rate += float64(s.tokens-1) / s.last.Sub(s.first).Seconds()
	}
	return rate, nil
}

func streamOne(ctx context.Context, addr, model string) (span, error) {
	var s span
	body, err := json.Marshal(map[string]any{"model": model, "prompt": strings.Repeat("a", promptLen), "max_tokens": httpSteps,
		"stream": true, "ignore_eos": true, "logprobs": 0, "temperature": sampling.Temperature, "top_k": sampling.TopK, "top_p": sampling.TopP, "seed": sampling.Seed})
	if err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return s, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return s, fmt.Errorf("worker answered %s: %s", resp.Status, text)
	}
	r := sse.NewReader(resp.Body)
	for {
		data, err := r.Next()
		if err != nil {
			return s, err
		}
		if string(data) == sse.Done {
			break
		}
		n, err := tokensIn(data)
		if err != nil {
			return s, err
		}
		if n > 0 {
			s.last = time.Now()
			if s.tokens == 0 {
				s.first = s.last
			}
			s.tokens += n
		}
	}
	if s.tokens < 2 {
		return s, errors.New("the stream had no tokens")
	}
	return s, nil
}

// tokensIn counts a chunk's tokens by its log-probabilities: text may lag.
func tokensIn(data []byte) (int, error) {
	var c struct {
		Choices []struct {
			Logprobs struct {
				Tokens []string `json:"tokens"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return 0, fmt.Errorf("chunk: %w", err)
	}
	n := 0
	for _, ch := range c.Choices {
		n += len(ch.Logprobs.Tokens)
	}
	return n, nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
