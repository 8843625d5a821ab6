package admit_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/testpg"
)

// liar is a fake engine that says of its answers what it is told to.
type liar struct {
	engine http.Handler
	usage  atomic.Value // func(answer map[string]any), or nil for the engine's own
	broken atomic.Bool
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	alter, _ := l.usage.Load().(func(map[string]any))
	switch {
	case r.Method != http.MethodPost || alter == nil && !l.broken.Load():
		l.engine.ServeHTTP(w, r)
	case l.broken.Load():
		http.Error(w, `{"error":{"message":"seven words that nobody has to pay","code":500}}`, http.StatusInternalServerError)
	default:
		rec := httptest.NewRecorder()
		l.engine.ServeHTTP(rec, r)
		var answer map[string]any
		_ = json.Unmarshal(rec.Body.Bytes(), &answer)
		alter(answer)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// TestUsageIsWhatUpstreamSays: a usage of zero is honoured, one that is
// missing is counted, and an error's text is never billed (requirement 7).
func TestUsageIsWhatUpstreamSays(t *testing.T) {
	l := &liar{engine: fake.New(fake.Options{Model: "m", MaxTokens: 5})}
	f := newFleetOn(t, testpg.Start(t), 1, l, false, limit{kind: "total_tokens", window: "month", max: 1_000_000})
	ask := func(status int) {
		t.Helper()
		if r := f.nodes[0].ask(t.Context(), ""); r.status != status {
			t.Fatalf("%d %s, want %d", r.status, r.body, status)
		}
	}
	count := func(where string) int64 {
		return f.number(`select count(*) from weir.usage_ledger where tenant_id = $1 and `+where, f.tenant)
	}
	l.usage.Store(func(a map[string]any) {
		a["usage"] = map[string]int{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
	})
	ask(200)
	eventually(t, "a zero is a zero", func() bool {
		return count(`usage_source = 'upstream' and outcome = 'ok' and input_tokens = 0 and output_tokens = 0 and cost_nanousd = 0`) == 1
	})
	l.usage.Store(func(a map[string]any) { delete(a, "usage") })
	ask(200)
	eventually(t, "what is missing is counted or estimated, and says so", func() bool {
		return count(`usage_source in ('counted', 'estimated') and outcome = 'ok' and output_tokens > 0`) == 1
	})
	l.broken.Store(true)
	if r := f.nodes[0].ask(t.Context(), ""); r.status < 500 {
		t.Errorf("a broken engine: %d %s", r.status, r.body)
	}
	eventually(t, "a failure has its row", func() bool { return count(`outcome = 'upstream_error'`) > 0 })
	if n := count(`outcome = 'upstream_error' and (output_tokens > 0 or cost_nanousd > 0)`); n != 0 {
		t.Errorf("%d failures are billed", n)
	}
	eventually(t, "counters equal the ledger", func() bool {
		return f.reserved() == 0 && f.used("total_tokens") == f.ledgered("input_tokens + output_tokens")
	})
}

// TestSDKRetriesOnce: OpenAI's own client comes back when Retry-After says, and
// its first retry is answered (requirement 12).
func TestSDKRetriesOnce(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 1, fake.Options{MaxTokens: 1}, false, limit{kind: "requests", window: "minute", max: 20, burst: 1})
	statuses := make(chan int, 20)
	c := openai.NewClient(option.WithBaseURL("http://"+f.nodes[0].api+"/v1"), option.WithAPIKey(f.key), option.WithMaxRetries(1),
		option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			resp, err := next(r)
			if err == nil {
				statuses <- resp.StatusCode
			}
			return resp, err
		}))
	for range 4 {
		_, err := c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "m",
			Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}})
		if err != nil {
			t.Fatalf("a first retry was refused: %v", err)
		}
	}
	refused := 0
	for len(statuses) > 0 {
		if <-statuses == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the test proves nothing")
	}
}
