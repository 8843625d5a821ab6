package gateway

import (
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// client is OpenAI's own Go client, unchanged.
func (r *rig) client(key string) openai.Client {
	return openai.NewClient(option.WithBaseURL(r.server.URL+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func question(stream bool) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{Model: "auto", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("is the light on")},
		Logprobs: openai.Bool(true), TopLogprobs: openai.Int(2)}
	if stream {
		p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	}
	return p
}

func TestOpenAIGo(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	c := r.client(r.key)
	t.Run("chat", func(t *testing.T) {
		got, err := c.Chat.Completions.New(t.Context(), question(false))
		if err != nil {
			t.Fatal(err)
		}
		if got.Choices[0].Message.Content != "the light is on" || got.Choices[0].FinishReason != "stop" || got.Usage.TotalTokens != 11 ||
			got.Usage.PromptTokensDetails.CachedTokens != 2 || got.Model != "big" || len(got.Choices[0].Logprobs.Content) != 1 {
			t.Errorf("answer %s", got.RawJSON())
		}
	})
	t.Run("stream", func(t *testing.T) {
		s := c.Chat.Completions.NewStreaming(t.Context(), question(true))
		acc := openai.ChatCompletionAccumulator{}
		for s.Next() {
			if !acc.AddChunk(s.Current()) {
				t.Fatalf("chunk does not fit: %s", s.Current().RawJSON())
			}
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		if acc.Choices[0].Message.Content != "the light is on" || acc.Usage.TotalTokens != 11 {
			t.Errorf("accumulated %+v", acc.ChatCompletion)
		}
	})
	t.Run("models", func(t *testing.T) {
		page, err := c.Models.List(t.Context())
		if err != nil || len(page.Data) != 2 || page.Data[0].ID != "auto" {
			t.Errorf("models %+v, %v", page, err)
		}
	})
	t.Run("errors", func(t *testing.T) {
		stranger := r.client("wk_bad")
		_, err := stranger.Chat.Completions.New(t.Context(), question(false))
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != 401 || e.Code != "invalid_api_key" {
			t.Errorf("bad key: %v", err)
		}
		p := question(false)
		p.Model = "gpt"
		if _, err = c.Chat.Completions.New(t.Context(), p); !errors.As(err, &e) || e.StatusCode != 404 || e.Code != "model_not_found" || e.Param != "model" {
			t.Errorf("unknown model: %v", err)
		}
	})
	t.Run("cut stream", func(t *testing.T) {
		d.on(d.diesAfter(2))
		defer d.on(nil)
		s := c.Chat.Completions.NewStreaming(t.Context(), question(true))
		n := 0
		for s.Next() {
			n++
		}
		if s.Err() == nil || n < 2 {
			t.Errorf("%d chunks, error %v: a cut stream looks whole", n, s.Err())
		}
	})
}
