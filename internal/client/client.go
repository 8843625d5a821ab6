// Package client is a small streaming client of the OpenAI-compatible API with
// Weir's contract, for Weir's own commands. Applications use OpenAI's SDKs.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
)

// Client calls one base URL with one API key.
type Client struct {
	URL  string // without /v1
	Key  string
	HTTP *http.Client
}

// Request is one chat turn.
type Request struct {
	Model     string // "" is auto
	Prompt    string
	Mode      string // value of X-Weir-Mode, "" for none
	MaxTokens int
}

// Answer is a finished chat turn.
type Answer struct {
	Text   string
	Model  string
	Finish string
	Usage  openai.Usage
	Weir   contract.Result
	// TTFT is from sending to the first chunk with text, Total to the end.
	TTFT, Total time.Duration
	RequestID   string
}

// ErrTruncated says that the stream ended without its [DONE].
var ErrTruncated = errors.New("the stream ended before its end mark")

type chunk struct {
	Model   string `json:"model"`
	Choices []struct {
		Delta        struct{ Content string } `json:"delta"`
		FinishReason *string                  `json:"finish_reason"`
	} `json:"choices"`
	Usage *openai.Usage    `json:"usage"`
	Weir  *contract.Result `json:"weir"`
	Error json.RawMessage  `json:"error"`
}

// Chat streams one answer. onText, when not nil, is told of each piece as it
// comes. An error of the API is an *openai.Error.
func (c *Client) Chat(ctx context.Context, r Request, onText func(string)) (*Answer, error) {
	if r.Model == "" {
		r.Model = "auto"
	}
	body := map[string]any{
		"model": r.Model, "messages": []openai.Message{{Role: "user", Content: r.Prompt}},
		"stream": true, "stream_options": map[string]bool{"include_usage": true}, "temperature": 0,
	}
	if r.MaxTokens > 0 {
		body["max_tokens"] = r.MaxTokens
	}
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.URL, "/")+"/v1/chat/completions", bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.Key)
	if r.Mode != "" {
		req.Header.Set(contract.HeaderMode, r.Mode)
	}
	began := time.Now()
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return nil, openai.ParseError(resp.StatusCode, text)
	}
	a := &Answer{RequestID: resp.Header.Get(contract.HeaderRequestID)}
	err = a.read(sse.NewReader(resp.Body), began, onText)
	a.Total = time.Since(began)
	return a, err
}

func (a *Answer) read(r *sse.Reader, began time.Time, onText func(string)) error {
	var text strings.Builder
	defer func() { a.Text = text.String() }()
	for {
		data, err := r.Next()
		if errors.Is(err, io.EOF) {
			return ErrTruncated
		}
		if err != nil {
			return fmt.Errorf("chat stream: %w", err)
		}
		if string(data) == sse.Done {
			return nil
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("chat stream: %w", err)
		}
		if c.Error != nil {
			return openai.ParseError(http.StatusBadGateway, data)
		}
		if c.Model != "" {
			a.Model = c.Model
		}
		if c.Usage != nil {
			a.Usage = *c.Usage
		}
		if c.Weir != nil {
			a.Weir = *c.Weir
		}
		for _, ch := range c.Choices {
			if ch.FinishReason != nil {
				a.Finish = *ch.FinishReason
			}
			if ch.Delta.Content == "" {
				continue
			}
			if a.TTFT == 0 {
				a.TTFT = time.Since(began)
			}
			text.WriteString(ch.Delta.Content)
			if onText != nil {
				onText(ch.Delta.Content)
			}
		}
	}
}

// Ready is the content of weir up's --ready-file.
type Ready struct {
	EdgeURL     string `json:"edge_url"`
	CloudURL    string `json:"cloud_url"`
	CloudH3Addr string `json:"cloud_h3_addr"`
	AppKey      string `json:"app_key"`
	AdminToken  string `json:"admin_token"`
	DataDir     string `json:"data_dir"`
}

// ReadReady reads a ready file.
func ReadReady(path string) (Ready, error) {
	var r Ready
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("no system is running there, %s does not exist: start 'weir up', or give --ready-file the file that it wrote", path)
	}
	if err != nil {
		return r, fmt.Errorf("ready file: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("ready file %s: %w", path, err)
	}
	if r.EdgeURL == "" || r.AppKey == "" {
		return r, fmt.Errorf("ready file %s: edge_url or app_key is missing", path)
	}
	return r, nil
}
