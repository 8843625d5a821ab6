package e2e

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// targets are both sides of the API with a model name that each serves itself.
func targets(s *system) map[string][2]string {
	return map[string][2]string{
		"edge, its own model":   {s.EdgeURL, "hub-edge"},
		"edge, cascade":         {s.EdgeURL, "auto"},
		"edge, the cloud model": {s.EdgeURL, "hub-cloud"},
		"cloud":                 {s.CloudURL, "hub-cloud"},
	}
}

const (
	lightPrompt = "turn on the kitchen light"
	lightAnswer = `{"do":"light.on","room":"kitchen"}`
)

func TestOpenAIJavaScriptClient(t *testing.T) {
	s := running(t)
	if _, err := os.Stat("openaijs/node_modules/openai"); err != nil {
		t.Fatal("the openai package is missing: run 'npm ci' in internal/e2e/openaijs ('make test' does)")
	}
	for name, tt := range targets(s) {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "node", "--test", "openaijs/conformance.test.mjs")
			cmd.Env = append(os.Environ(), "WEIR_TEST_URL="+tt[0]+"/v1", "WEIR_TEST_KEY="+s.AppKey, "WEIR_TEST_MODEL="+tt[1])
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func TestOpenAIGoClient(t *testing.T) {
	s := running(t)
	for name, tt := range targets(s) {
		t.Run(name, func(t *testing.T) {
			c := openai.NewClient(option.WithBaseURL(tt[0]+"/v1/"), option.WithAPIKey(s.AppKey), option.WithMaxRetries(0))
			params := openai.ChatCompletionNewParams{Model: tt[1], Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(lightPrompt)},
				Temperature: openai.Float(0), Logprobs: openai.Bool(true)}
			checkChat(t, c, params)
			checkStream(t, c, params)
			checkErrors(t, c, tt[1])
		})
	}
}

func checkChat(t *testing.T, c openai.Client, params openai.ChatCompletionNewParams) {
	t.Helper()
	r, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if r.Choices[0].Message.Content != lightAnswer || r.Usage.CompletionTokens == 0 || len(r.Choices[0].Logprobs.Content) == 0 {
		t.Errorf("got %s", r.RawJSON())
	}
}

func checkStream(t *testing.T, c openai.Client, params openai.ChatCompletionNewParams) {
	t.Helper()
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(t.Context(), params)
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if acc.Choices[0].Message.Content != lightAnswer || acc.Usage.CompletionTokens == 0 {
		t.Errorf("streamed %q with usage %+v", acc.Choices[0].Message.Content, acc.Usage)
	}
}

func checkErrors(t *testing.T, c openai.Client, model string) {
	t.Helper()
	_, err := c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "no-such-model",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("x")}})
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != 404 || e.Code != "model_not_found" {
		t.Errorf("unknown model: %v", err)
	}
	_, err = c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("x")}, Temperature: openai.Float(9)})
	if !errors.As(err, &e) || e.StatusCode != 400 || e.Param != "temperature" {
		t.Errorf("wrong temperature: %v", err)
	}
	models, err := c.Models.List(t.Context())
	if err != nil || len(models.Data) == 0 {
		t.Errorf("models: %+v, %v", models, err)
	}
}
