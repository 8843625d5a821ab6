// Package workertest is a local model server for the tests of the edge. It
// streams what the test says, with the log-probabilities it says.
package workertest

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/internal/openai"
)

// Fingerprint is the weights' fingerprint that Health reports.
const Fingerprint = "weights-1"

// Reply is how the worker answers one request.
type Reply struct {
	Text    string        // sent a word at a time
	Logprob float64       // of each word and of the end token
	Unsure  int           // other than 0: words from this one on have log-probability -2
	Sure    int           // other than 0: words before this one have log-probability -2
	NoProbs bool          // leave log-probabilities out
	Status  int           // other than 0: an error answer
	Code    string        // its code
	CutAt   int           // cut the connection after so many words; 0 never
	Gate    chan struct{} // when set, waits for it before the first byte
	GateAt  int           // or before this word
	Calls   string        // JSON list of tool calls, sent before the text's end
	Finish  string        // reason of the end; "stop" or "tool_calls" by default
	Before  func()        // called before the first byte
	// NoFormat refuses requests for a form of answer.
	NoFormat bool
	Vote     Vote // what is said to requests that do not stream: whether an answer is right
}

// Vote is how the worker answers a question about its own answer.
type Vote struct {
	Yes     float64       // probability of YES
	Sampled string        // other than "": a letter for each sample, y or n; no probabilities are told
	Gate    chan struct{} // when set, waits for it
	Before  func()        // called before it is said
	Status  int           // other than 0: an error answer
	Param   string        // its member
	Says    string        // other than "": the whole body
}

func (v *Vote) answer(rw http.ResponseWriter, body map[string]json.RawMessage) {
	const used = `"usage":{"prompt_tokens":11,"completion_tokens":1,"total_tokens":12}}`
	_, samples := body["n"]
	if v.Before != nil {
		v.Before()
	}
	switch {
	case v.Status != 0:
		(&openai.Error{Status: v.Status, Type: openai.TypeInvalidRequest, Code: "no", Param: v.Param, Message: "the worker says no"}).Write(rw, nil)
	case v.Says != "":
		_, _ = io.WriteString(rw, v.Says)
	case v.Sampled != "" && samples:
		choices := []string{}
		for i, c := range v.Sampled {
			choices = append(choices, fmt.Sprintf(`{"index":%d,"message":{"content":%q},"text":%q}`, i, string(c), string(c)))
		}
		fmt.Fprintf(rw, `{"choices":[%s],`+used, strings.Join(choices, ","))
	case v.Sampled != "":
		fmt.Fprint(rw, `{"choices":[{"index":0,"message":{"content":"YES"},"logprobs":null}],`+used)
	default:
		yes, no := math.Log(max(1e-9, v.Yes)), math.Log(max(1e-9, 1-v.Yes))
		fmt.Fprintf(rw, `{"choices":[{"index":0,"message":{"content":"YES"},"logprobs":{"content":[{"token":"YES","logprob":%g,"top_logprobs":[{"token":"YES","logprob":%g},{"token":"NO","logprob":%g}]}],"top_logprobs":[{"YES":%g,"NO":%g}]}}],`+used,
			yes, yes, no, yes, no)
	}
}

// Worker is a running test worker.
type Worker struct {
	*httptest.Server
	mu     sync.Mutex
	reply  Reply
	seen   []map[string]json.RawMessage
	head   []http.Header
	status int
	mute   bool
}

// Start starts a worker that ends with the test and is confident.
func Start(t testing.TB) *Worker {
	w := &Worker{reply: Reply{Text: "from the edge", Logprob: -.001}, status: http.StatusOK}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", w.serveHealth)
	mux.HandleFunc("POST /v1/", w.serveModel)
	w.Server = httptest.NewServer(mux)
	t.Cleanup(w.Close)
	return w
}

// Set says how to answer from now on.
func (w *Worker) Set(r Reply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reply = r
}

// SetHealth sets the status of health answers.
func (w *Worker) SetHealth(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = status
}

// Seen returns the bodies of the model requests so far.
func (w *Worker) Seen() []map[string]json.RawMessage {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]map[string]json.RawMessage(nil), w.seen...)
}

// Votes is how many of the requests asked about an answer.
func (w *Worker) Votes() int {
	n := 0
	for _, body := range w.Seen() {
		if string(body["stream"]) != "true" {
			n++
		}
	}
	return n
}

// Headers returns the headers of the model requests so far.
func (w *Worker) Headers() []http.Header {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]http.Header(nil), w.head...)
}

// SayNothing makes health answers tell no context, as other servers' do: what
// the model can take is then unknown.
func (w *Worker) SayNothing() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute = true
}

func (w *Worker) serveHealth(rw http.ResponseWriter, _ *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rw.WriteHeader(w.status)
	context := 2048
	if w.mute {
		context = 0
	}
	fmt.Fprintf(rw, `{"status":"ok","name":"edge-worker","epoch":"e1","model":"hub-edge","fingerprint":{"weights":%q},"context":%d,"max_seqs":8}`, Fingerprint, context)
}

func (w *Worker) serveModel(rw http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	var body map[string]json.RawMessage
	_ = json.Unmarshal(raw, &body)
	w.mu.Lock()
	w.seen, w.head = append(w.seen, body), append(w.head, r.Header.Clone())
	reply := w.reply
	w.mu.Unlock()
	if string(body["stream"]) != "true" {
		if v := reply.Vote; (&Reply{Gate: v.Gate}).wait(r) {
			v.answer(rw, body)
		}
		return
	}
	if reply.Before != nil {
		reply.Before()
	}
	if reply.GateAt == 0 && !reply.wait(r) {
		return
	}
	if _, asks := body["response_format"]; asks && reply.NoFormat {
		openai.BadRequest("response_format", openai.CodeUnsupported, "no").Write(rw, nil)
		return
	}
	if reply.Status != 0 {
		(&openai.Error{Status: reply.Status, Type: openai.TypeInvalidRequest, Code: reply.Code, Param: "messages", Message: "the worker says no"}).Write(rw, nil)
		return
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	stream(rw, r, reply)
}

// wait waits for the gate; it reports false when the client has left.
func (r *Reply) wait(req *http.Request) bool {
	if r.Gate == nil {
		return true
	}
	select {
	case <-r.Gate:
		return true
	case <-req.Context().Done():
		return false
	}
}

func stream(rw http.ResponseWriter, r *http.Request, reply Reply) {
	chat := strings.HasSuffix(r.URL.Path, "chat/completions")
	send := func(format string, a ...any) {
		fmt.Fprintf(rw, "data: "+format+"\n\n", a...)
		_ = http.NewResponseController(rw).Flush()
	}
	words := strings.SplitAfter(reply.Text, " ")
	if reply.Text == "" {
		words = nil
	}
	for i, word := range append(words, "") {
		if reply.CutAt > 0 && i == reply.CutAt {
			panic(http.ErrAbortHandler)
		}
		if reply.GateAt > 0 && i == reply.GateAt && !reply.wait(r) {
			return
		}
		token := word
		if i == len(words) {
			token = "</s>"
		}
		send(`{"id":"w","object":"x","created":1,"model":"hub-edge","choices":[{"index":0,%s,"logprobs":%s,"finish_reason":null}]}`,
			piece(chat, word), probs(chat, token, reply, i))
	}
	finish := "stop"
	if reply.Finish != "" {
		finish = reply.Finish
	}
	if reply.Calls != "" {
		finish = "tool_calls"
		send(`{"id":"w","object":"x","created":1,"model":"hub-edge","choices":[{"index":0,"delta":{"tool_calls":%s},"logprobs":null,"finish_reason":null}]}`, reply.Calls)
	}
	send(`{"id":"w","object":"x","created":1,"model":"hub-edge","choices":[{"index":0,%s,"logprobs":null,"finish_reason":%q}]}`, piece(chat, ""), finish)
	send(`{"id":"w","object":"x","created":1,"model":"hub-edge","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}}`,
		len(words)+1, len(words)+8)
	send("[DONE]")
}

func piece(chat bool, word string) string {
	q, _ := json.Marshal(word)
	if chat {
		return `"delta":{"content":` + string(q) + `}`
	}
	return `"text":` + string(q)
}

func probs(chat bool, token string, r Reply, i int) string {
	if r.NoProbs {
		return "null"
	}
	lp := r.Logprob
	if r.Unsure > 0 && i >= r.Unsure || i < r.Sure {
		lp = -2
	}
	q, _ := json.Marshal(token)
	if chat {
		return fmt.Sprintf(`{"content":[{"token":%s,"logprob":%g,"bytes":[],"top_logprobs":[]}],"refusal":null}`, q, lp)
	}
	return fmt.Sprintf(`{"tokens":[%s],"token_logprobs":[%g],"top_logprobs":[{}],"text_offset":[0]}`, q, lp)
}
