package fake

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// maxBody bounds a request's body, in bytes.
const maxBody = 32 << 20

// request is what the engine reads of a body. vLLM ignores what it does not
// know, and so does this.
type request struct {
	Model               string           `json:"model"`
	Messages            []message        `json:"messages"`
	Prompt              json.RawMessage  `json:"prompt"`
	MaxTokens           *int             `json:"max_tokens"`
	MaxCompletionTokens *int             `json:"max_completion_tokens"`
	N                   *int             `json:"n"`
	Stop                json.RawMessage  `json:"stop"`
	Stream              bool             `json:"stream"`
	StreamOptions       *streamOptions   `json:"stream_options"`
	Logprobs            json.RawMessage  `json:"logprobs"` // bool for chat, integer for text
	TopLogprobs         int              `json:"top_logprobs"`
	KV                  *json.RawMessage `json:"kv_transfer_params"`
	ReturnIDs           bool             `json:"return_token_ids"`
	Resume              *resume          `json:"weir_resume"`

	chat     bool
	text     string // of the prompt
	tokens   int    // of the prompt
	leg      Leg
	source   source
	logprobs bool
	top      int
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// source is where a decode leg's blocks are, as far as the engine needs it.
type source struct {
	DoRemotePrefill bool    `json:"do_remote_prefill"`
	DoRemoteDecode  bool    `json:"do_remote_decode"`
	EngineID        *string `json:"remote_engine_id"`
	RequestID       *string `json:"remote_request_id"`
	Host            *string `json:"remote_host"`
	Port            *int    `json:"remote_port"`
}

// complete reports whether all members are there that vLLM needs; without them
// it computes the prompt and says nothing.
func (s source) complete() bool {
	return s.EngineID != nil && s.RequestID != nil && s.Host != nil && s.Port != nil
}

// badRequest is a 400 with the member at fault.
type badRequest struct{ param, message string }

func (e *badRequest) Error() string { return e.message }

func readRequest(r *http.Request, chat bool) (*request, error) {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil || len(data) > maxBody {
		return nil, &badRequest{"", "the body cannot be read or is too large"}
	}
	q := &request{chat: chat}
	if err := json.Unmarshal(data, q); err != nil {
		return nil, &badRequest{"", "invalid JSON: " + err.Error()}
	}
	if chat {
		err = q.readChat()
	} else {
		err = q.readText()
	}
	if err != nil {
		return nil, err
	}
	if q.N != nil && *q.N != 1 {
		return nil, &badRequest{"n", "only n = 1 is served"}
	}
	if q.KV != nil {
		if err := json.Unmarshal(*q.KV, &q.source); err != nil {
			return nil, &badRequest{"kv_transfer_params", "invalid kv_transfer_params: " + err.Error()}
		}
	}
	q.tokens = promptTokens(q.text)
	q.leg = Whole
	switch {
	case q.source.DoRemoteDecode:
		q.leg = Prefill
	case q.source.DoRemotePrefill:
		q.leg = Decode
	}
	return q, nil
}

// promptTokens counts four bytes as a token, which is about right for English.
func promptTokens(text string) int { return max(1, (len(text)+3)/4) }

func (q *request) readChat() error {
	if len(q.Messages) == 0 {
		return &badRequest{"messages", "messages must not be empty"}
	}
	var b strings.Builder
	for i, m := range q.Messages {
		text, err := contentText(m.Content)
		if err != nil {
			return &badRequest{fmt.Sprintf("messages[%d].content", i), err.Error()}
		}
		fmt.Fprintf(&b, "%s: %s\n", m.Role, text)
	}
	q.text = b.String()
	if len(q.Logprobs) > 0 && json.Unmarshal(q.Logprobs, &q.logprobs) != nil {
		return &badRequest{"logprobs", "logprobs must be a boolean"}
	}
	q.top = q.TopLogprobs
	return nil
}

func contentText(raw json.RawMessage) (string, error) {
	var s string
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", fmt.Errorf("content must be a string or a list of parts")
	}
	for _, p := range parts {
		s += p.Text
	}
	return s, nil
}

func (q *request) readText() error {
	if json.Unmarshal(q.Prompt, &q.text) != nil {
		return &badRequest{"prompt", "prompt must be a string"}
	}
	var n *int
	if len(q.Logprobs) > 0 && json.Unmarshal(q.Logprobs, &n) != nil {
		return &badRequest{"logprobs", "logprobs must be an integer"}
	}
	if n != nil {
		q.logprobs, q.top = true, *n
	}
	return nil
}

// question is the last user message, or the whole text prompt.
func (q *request) question() string {
	for i := len(q.Messages) - 1; i >= 0; i-- {
		if q.Messages[i].Role == "user" {
			s, _ := contentText(q.Messages[i].Content) // checked by readChat
			return s
		}
	}
	return q.text
}

// answer is what will be generated, as tokens, and why it ends.
func (e *Engine) answer(q *request) (tokens []string, finish string) {
	limit, named := e.limit(q)
	limit += q.resumed()
	finish = "length"
	if e.o.Reply != nil {
		tokens = strings.SplitAfter(e.o.Reply(q.question()), " ")
		finish = "stop"
	} else {
		tokens = words(q.text, limit)
		if !named {
			finish = "stop"
		}
	}
	if len(tokens) > limit {
		tokens, finish = tokens[:limit], "length"
	}
	return tokens, finish
}

func (e *Engine) limit(q *request) (n int, named bool) {
	room := e.o.Context - q.tokens
	for _, v := range []*int{q.MaxCompletionTokens, q.MaxTokens} {
		if v != nil {
			return min(*v, room), true
		}
	}
	return min(e.o.MaxTokens, room) - q.resumed(), false
}

var vocabulary = strings.Fields("the river holds water back and lets over only what it must a small stone turns slow " +
	"green light along every bank where reeds bend low under wind before evening comes again from distant hills")

// words makes n tokens that depend only on the prompt.
func words(prompt string, n int) []string {
	h := fnv.New64a()
	_, _ = io.WriteString(h, prompt)
	x := h.Sum64()
	out := make([]string, n)
	for i := range out {
		x = x*6364136223846793005 + 1442695040888963407 // Knuth's MMIX generator
		out[i] = " " + vocabulary[(x>>33)%uint64(len(vocabulary))]
	}
	if n > 0 {
		out[0] = out[0][1:]
	}
	return out
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// writeError sends vLLM's nested error with an integer code.
func writeError(w http.ResponseWriter, status int, text, param string) {
	writeJSON(w, status, map[string]any{"error": errorMembers(status, text, param)})
}

func errorMembers(status int, text, param string) map[string]any {
	kind := "InternalServerError"
	switch status {
	case http.StatusBadRequest:
		kind = "BadRequestError"
	case http.StatusNotFound:
		kind = "NotFoundError"
	}
	var p any
	if param != "" {
		p = param
	}
	return map[string]any{"message": text, "type": kind, "param": p, "code": status}
}

func round6(x float64) float64 { return math.Round(x*1e6) / 1e6 }

func hostPort(hostport string) (string, int) {
	i := strings.LastIndexByte(hostport, ':')
	if i < 0 {
		return hostport, 80
	}
	n, _ := strconv.Atoi(hostport[i+1:]) // a Host header of a real connection
	return strings.Trim(hostport[:i], "[]"), n
}
