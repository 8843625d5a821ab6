package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
)

// TestOpenAIClient talks to a worker with OpenAI's own client, unchanged.
func TestOpenAIClient(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{}))
	c := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	ctx := context.Background()
	p := openai.ChatCompletionNewParams{Model: "toy", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
		Temperature: openai.Float(0), Logprobs: openai.Bool(true), TopLogprobs: openai.Int(2), MaxCompletionTokens: openai.Int(30)}
	whole, err := c.Chat.Completions.New(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	want := whole.Choices[0]
	if want.Message.Content == "" || len(want.Logprobs.Content) != int(whole.Usage.CompletionTokens) || len(want.Logprobs.Content[0].TopLogprobs) != 2 {
		t.Errorf("answer %+v", want)
	}
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	s := c.Chat.Completions.NewStreaming(ctx, p)
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			t.Errorf("chunk does not fit: %s", s.Current().RawJSON())
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	got := acc.Choices[0]
	if got.Message.Content != want.Message.Content || got.FinishReason != want.FinishReason || acc.Usage.TotalTokens != whole.Usage.TotalTokens ||
		len(got.Logprobs.Content) != len(want.Logprobs.Content) {
		t.Errorf("stream %+v, want %+v", got, want)
	}
	if page, err := c.Models.List(ctx); err != nil || len(page.Data) != 1 || page.Data[0].ID != "toy" {
		t.Errorf("models %v, %v", page, err)
	}
	p.Model, p.StreamOptions = "other", openai.ChatCompletionStreamOptionsParam{}
	var apiErr *openai.Error
	if _, err := c.Chat.Completions.New(ctx, p); !errors.As(err, &apiErr) || apiErr.StatusCode != 404 || apiErr.Code != "model_not_found" || apiErr.Param != "model" {
		t.Errorf("unknown model: %v", err)
	}
}
