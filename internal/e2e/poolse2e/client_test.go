package poolse2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// answer is what a client got.
type answer struct {
	operation string
	status    int
	text      string
	done      bool   // [DONE] came, or a body with status 200
	fault     string // code of the error event or body
	broken    error  // the connection's
	late      bool   // the client's patience ended first
	ends      int    // how many of [DONE] and error events came
	attempts  int    // as the gateway tells
	id        string // of the newest event
	ids       int    // how many different ones came after one another
	picks     []pick // of a question with logprobs
	prompt    int    // tokens, by the usage, as made is
	made      int
}

// question is what a client asks, always for the likeliest tokens.
type question struct {
	model, prompt string
	tokens        int  // as many are made,
	ends          bool // or fewer, up to the model's end token
	stream        bool
	logprobs      bool // with those of the two best
}

func (q question) body() string {
	more := ""
	if q.stream {
		more += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	if !q.ends {
		more += `,"ignore_eos":true`
	}
	if q.logprobs {
		more += `,"logprobs":true,"top_logprobs":2`
	}
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":%d,"temperature":0%s}`, q.model, q.prompt, q.tokens, more)
}

// whole reports a complete answer.
func (a *answer) whole() bool {
	return a.status == http.StatusOK && a.done && a.fault == "" && a.broken == nil && a.ends == 1 && a.ids == 1
}

// said reports that a failed answer says so: by an error, or by a connection
// that broke.
func (a *answer) said() bool { return !a.done && (a.fault != "" || a.broken != nil) && a.ends <= 1 }

// patience is far beyond every timeout of the gateway.
const patience = 90 * time.Second

// ask sends one request; prompts with the same number have the same answer.
func (f *fleet) ask(ctx context.Context, gateway string, prompt, tokens int, stream bool, first ...func()) answer {
	return f.askWith(ctx, gateway, fmt.Sprint("prompt ", prompt), tokens, stream, first...)
}

func (f *fleet) askWith(ctx context.Context, gateway, prompt string, tokens int, stream bool, first ...func()) answer {
	return f.pose(ctx, gateway, question{model: model, prompt: prompt, tokens: tokens, stream: stream}, first...)
}

func (f *fleet) pose(ctx context.Context, gateway string, q question, first ...func()) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer func() { a.late = ctx.Err() != nil }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.all[gateway].url+"/v1/chat/completions", strings.NewReader(q.body()))
	if err != nil {
		a.broken = err
		return a
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := f.http.Do(req)
	if err != nil {
		a.broken = err
		return a
	}
	defer resp.Body.Close()
	a.status, a.operation = resp.StatusCode, resp.Header.Get("X-Request-Id")
	if !q.stream || a.status != http.StatusOK {
		data, err := io.ReadAll(resp.Body)
		a.broken, a.done = err, a.status == http.StatusOK
		a.take(data)
		a.ends = 1
		return a
	}
	a.read(resp.Body, first)
	return a
}

// read reads a stream to its end. Each of first is called at the first token.
func (a *answer) read(r io.Reader, first []func()) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			a.done = true
			a.ends++
		default:
			before := a.text
			a.take([]byte(data))
			if before == "" && a.text != "" {
				for _, f := range first {
					f()
				}
			}
		}
	}
	a.broken = lines.Err()
	if a.broken == nil && !a.done && a.fault == "" {
		a.broken = errors.New("the stream ended without a word")
	}
}

// take reads an event or a body.
func (a *answer) take(data []byte) {
	var v struct {
		ID      string
		Choices []struct {
			Delta, Message struct{ Content string }
			Logprobs       struct{ Content []pick }
		}
		Usage *struct {
			Prompt int `json:"prompt_tokens"`
			Made   int `json:"completion_tokens"`
		}
		Error *struct{ Code string }
		Weir  *struct{ Attempts int }
	}
	if err := json.Unmarshal(data, &v); err != nil {
		a.fault = "not JSON: " + string(data[:min(len(data), 80)])
		return
	}
	if v.ID != "" && v.ID != a.id {
		a.id = v.ID
		a.ids++
	}
	for _, c := range v.Choices {
		a.text += c.Delta.Content + c.Message.Content
		a.picks = append(a.picks, c.Logprobs.Content...)
	}
	if v.Usage != nil {
		a.prompt, a.made = v.Usage.Prompt, v.Usage.Made
	}
	if v.Weir != nil {
		a.attempts = v.Weir.Attempts
	}
	if v.Error != nil {
		a.fault = v.Error.Code
		a.ends++
	}
}
