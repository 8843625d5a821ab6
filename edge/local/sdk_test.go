package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/weirhq/weir/edge/internal/workertest"
)

// sdk is OpenAI's own client, unchanged, at the edge node.
func (n *node) sdk(key string) openai.Client {
	return openai.NewClient(option.WithBaseURL(n.url+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func params(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}}
}

func TestOpenAIClientChat(t *testing.T) {
	n := startNode(t, nil)
	client, ctx := n.sdk(n.cloud.Key.Reveal()), context.Background()
	for _, tt := range []struct {
		reply             workertest.Reply
		text, model, tier string
	}{
		{confident, "from the edge", "hub-edge", "edge"},
		{unsure, "from the cloud", "hub-cloud", "cloud"},
	} {
		n.worker.Set(tt.reply)
		p := params("auto")
		p.Logprobs, p.TopLogprobs = openai.Bool(true), openai.Int(0)
		r, err := client.Chat.Completions.New(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if r.Choices[0].Message.Content != tt.text || r.Model != tt.model || r.Choices[0].FinishReason != "stop" || r.Usage.TotalTokens == 0 {
			t.Errorf("answer %+v", r)
		}
		if tt.tier == "edge" && len(r.Choices[0].Logprobs.Content) != 4 {
			t.Errorf("log-probabilities of %d tokens", len(r.Choices[0].Logprobs.Content))
		}
		var weir struct{ Tier string }
		if err := json.Unmarshal([]byte(r.JSON.ExtraFields["weir"].Raw()), &weir); err != nil || weir.Tier != tt.tier {
			t.Errorf("weir object %q: %v", r.JSON.ExtraFields["weir"].Raw(), err)
		}
	}
}

func TestOpenAIClientStream(t *testing.T) {
	n := startNode(t, nil)
	client, ctx := n.sdk(n.cloud.Key.Reveal()), context.Background()
	for _, reply := range []workertest.Reply{confident, unsure} {
		n.worker.Set(reply)
		p := params("auto")
		p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		stream := client.Chat.Completions.NewStreaming(ctx, p)
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Error("chunks do not belong together")
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		want := "from the edge"
		if reply.Logprob < -.5 {
			want = "from the cloud"
		}
		if acc.Choices[0].Message.Content != want || acc.Choices[0].FinishReason != "stop" {
			t.Errorf("accumulated %+v", acc.Choices)
		}
	}
}

func TestOpenAIClientCompletionsAndModels(t *testing.T) {
	n := startNode(t, nil)
	client, ctx := n.sdk(n.cloud.Key.Reveal()), context.Background()
	r, err := client.Completions.New(ctx, openai.CompletionNewParams{Model: "hub-edge", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("x")}})
	if err != nil || r.Choices[0].Text != "from the edge" {
		t.Errorf("%+v: %v", r, err)
	}
	page, err := client.Models.List(ctx)
	if err != nil || len(page.Data) != 3 {
		t.Errorf("models %+v: %v", page, err)
	}
}

func TestOpenAIClientErrors(t *testing.T) {
	n := startNode(t, nil)
	ctx := context.Background()
	for _, tt := range []struct {
		key, model string
		status     int
		code       string
	}{
		{n.cloud.Key.Reveal(), "gpt-9", 404, "model_not_found"},
		{"sk-nothing", "auto", 401, "invalid_api_key"},
	} {
		client := n.sdk(tt.key)
		_, err := client.Chat.Completions.New(ctx, params(tt.model))
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != tt.status || e.Code != tt.code || e.Message == "" {
			t.Errorf("%s: %v", tt.model, err)
		}
	}
	n.worker.Set(unsure)
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) { // breaks after the first event
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"hub-cloud","choices":[{"index":0,"delta":{"content":"fr"}}]}` + "\n\n"))
	})
	client := n.sdk(n.cloud.Key.Reveal())
	stream := client.Chat.Completions.NewStreaming(ctx, params("auto"))
	for stream.Next() {
	}
	if stream.Err() == nil {
		t.Error("a broken stream is no error to the client")
	}
}
