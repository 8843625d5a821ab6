package foresight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/prerouter"
	"github.com/weirhq/weir/internal/loopback"
)

// Outcome is how an embedding went.
type Outcome string

// The outcomes. Skipped says that the endpoint has failed too often lately, or that
// the request was over first.
const (
	OutcomeOK      Outcome = "ok"
	OutcomeTimeout Outcome = "timeout"
	OutcomeError   Outcome = "error"
	OutcomeSkipped Outcome = "skipped"
)

// EmbedderConfig names an endpoint that speaks OpenAI's embeddings API.
type EmbedderConfig struct {
	URL     string        `yaml:"url"`      // https://host/v1/embeddings; http on loopback only
	Model   string        `yaml:"model"`    //
	KeyFile string        `yaml:"key_file"` // with the API key; none: no key is sent
	Timeout time.Duration `yaml:"timeout"`  // longest that a request is held up: 50 ms
}

// Bounds of an exchange with the endpoint.
const (
	defaultTimeout = 50 * time.Millisecond
	mostTimeout    = 2 * time.Second
	maxInput       = 8 << 10 // bytes of the prompt
	maxReply       = 1 << 20
)

// Validate reports the first key that cannot be used; nothing set at all is fine.
func (c *EmbedderConfig) Validate() error {
	if *c == (EmbedderConfig{}) {
		return nil
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || !strings.HasSuffix(u.Path, "/embeddings"):
		return errors.New("embedder.url: want https://host/v1/embeddings, without user or query")
	case u.Scheme != "https" && !(u.Scheme == "http" && loopback.Host(u.Host)):
		return fmt.Errorf("embedder.url: prompts would leave this machine unprotected: want https, or http on loopback, not %q", u.Scheme+"://"+u.Host)
	case c.Model == "":
		return errors.New("embedder.model is missing")
	case c.Timeout < 0 || c.Timeout > mostTimeout:
		return fmt.Errorf("embedder.timeout %v: want at most %v", c.Timeout, mostTimeout)
	}
	return nil
}

// Embedder asks the endpoint. It is safe for concurrent use.
type Embedder struct {
	opt     EmbedderConfig
	key     string
	http    *http.Client
	results *prometheus.CounterVec

	mu      sync.Mutex
	breaker control.Breaker
}

// NewEmbedder returns the Embedder of a configuration, nil where none is named. Its
// metric is registered in reg.
func NewEmbedder(c EmbedderConfig, reg prometheus.Registerer) (*Embedder, error) {
	if err := c.Validate(); err != nil || c.URL == "" {
		return nil, err
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	e := &Embedder{opt: c, results: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_edge_embeddings_total", Help: "Prompts to embed, by outcome: ok, timeout, error or skipped.",
	}, []string{"outcome"})}
	if c.KeyFile != "" {
		raw, err := os.ReadFile(c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("embedder.key_file: %w", err)
		}
		e.key = strings.TrimSpace(string(raw))
	}
	e.http = &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return e, reg.Register(e.results)
}

// Close ends idle connections.
func (e *Embedder) Close() {
	if e != nil {
		e.http.CloseIdleConnections()
	}
}

// embed returns the vector of a text, nil where there is none in time.
func (e *Embedder) embed(ctx context.Context, text string) (v []float64, o Outcome) {
	defer func() { e.results.WithLabelValues(string(o)).Inc() }()
	e.mu.Lock()
	allowed := e.breaker.Allow(time.Now())
	e.mu.Unlock()
	if !allowed {
		return nil, OutcomeSkipped
	}
	v, err := e.ask(ctx, text)
	switch {
	case err == nil:
		o = OutcomeOK
	case errors.Is(ctx.Err(), context.Canceled):
		o = OutcomeSkipped
	case ctx.Err() != nil:
		o = OutcomeTimeout
	default:
		o = OutcomeError
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if o == OutcomeSkipped {
		e.breaker.Release()
		return v, o
	}
	e.breaker.Result(o == OutcomeOK, time.Now())
	return v, o
}

func (e *Embedder) ask(ctx context.Context, text string) ([]float64, error) {
	text = strings.ToValidUTF8(text[:min(len(text), maxInput)], "")
	body, err := json.Marshal(map[string]any{"model": e.opt.Model, "input": text, "encoding_format": "float"})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.opt.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if e.key != "" {
		req.Header.Set("Authorization", "Bearer "+e.key)
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the embedding endpoint answers %s", resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, err
	}
	return parseEmbedding(raw)
}

// parseEmbedding reads the vector of an answer.
func parseEmbedding(raw []byte) ([]float64, error) {
	var reply struct {
		Data []struct{ Embedding []float64 }
	}
	if err := json.Unmarshal(raw, &reply); err != nil {
		return nil, fmt.Errorf("the embedding endpoint's answer: %w", err)
	}
	if len(reply.Data) != 1 || len(reply.Data[0].Embedding) == 0 || len(reply.Data[0].Embedding) > prerouter.MaxDimension {
		return nil, fmt.Errorf("the embedding endpoint's answer: want one vector of at most %d values", prerouter.MaxDimension)
	}
	square := 0.0
	for _, x := range reply.Data[0].Embedding {
		square += x * x
	}
	if !(square > 0) || math.IsInf(square, 0) {
		return nil, errors.New("the embedding endpoint's answer: a vector without a length")
	}
	return reply.Data[0].Embedding, nil
}
