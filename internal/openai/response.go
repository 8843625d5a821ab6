package openai

import "encoding/json"

// Values of object members.
const (
	ObjectChat       = "chat.completion"
	ObjectChatChunk  = "chat.completion.chunk"
	ObjectCompletion = "text_completion"
	ObjectModel      = "model"
	ObjectList       = "list"
)

// Finish reasons that Weir's own workers give. Others pass through.
const (
	FinishStop   = "stop"
	FinishLength = "length"
	FinishAbort  = "abort"
	FinishError  = "error"
)

// Response is a chat or text completion, or one chunk of its stream, by
// Object.
type Response struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"` // Unix seconds
	Model   string   `json:"model"`   // the model that really answered
	Choices []Choice `json:"choices"`
	Usage   *Usage   `json:"usage,omitempty"`
	// KVTransferParams is the prefill leg's opaque hand-off (protocols.md 2).
	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
	// Weir is the contract's weir object, set at the edge of the system only.
	Weir any `json:"weir,omitempty"`
}

// Choice is one answer. Message is for whole chat answers, Delta for chunks,
// Text for text completions.
type Choice struct {
	Index        int           `json:"index"`
	Message      *Answer       `json:"message,omitempty"`
	Delta        *Delta        `json:"delta,omitempty"`
	Text         *string       `json:"text,omitempty"`
	Logprobs     *Logprobs     `json:"logprobs"`
	TextLogprobs *TextLogprobs `json:"-"` // text completions; see MarshalJSON
	FinishReason *string       `json:"finish_reason"`
}

// MarshalJSON writes the log-probabilities in the form of the choice's kind.
func (c Choice) MarshalJSON() ([]byte, error) {
	type plain Choice
	if c.TextLogprobs == nil {
		return json.Marshal(plain(c))
	}
	return json.Marshal(struct {
		plain
		Logprobs *TextLogprobs `json:"logprobs"`
	}{plain(c), c.TextLogprobs})
}

// Answer is the message of a whole chat completion.
type Answer struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

// Delta is what a chunk adds to the message.
type Delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// Logprobs are the log-probabilities (natural logarithm) of a chat answer's
// tokens. The entry of the end token, with empty Bytes, is included.
type Logprobs struct {
	Content []TokenLogprob `json:"content"`
	Refusal []TokenLogprob `json:"refusal"`
}

// TokenLogprob is one generated token.
type TokenLogprob struct {
	Token       string       `json:"token"`
	Logprob     float64      `json:"logprob"`
	Bytes       ByteList     `json:"bytes"`
	TopLogprobs []TopLogprob `json:"top_logprobs"`
}

// TopLogprob is one likely alternative, the most likely first.
type TopLogprob struct {
	Token   string   `json:"token"`
	Logprob float64  `json:"logprob"`
	Bytes   ByteList `json:"bytes"`
}

// ByteList is written as a list of numbers, not as base64.
type ByteList []byte

// MarshalJSON implements json.Marshaler.
func (l ByteList) MarshalJSON() ([]byte, error) {
	ints := make([]int, len(l))
	for i, b := range l {
		ints[i] = int(b)
	}
	return json.Marshal(ints)
}

// UnmarshalJSON implements json.Unmarshaler. null is an empty list.
func (l *ByteList) UnmarshalJSON(data []byte) error {
	var ints []uint8
	var nums []int
	if err := json.Unmarshal(data, &nums); err != nil {
		return err
	}
	for _, n := range nums {
		ints = append(ints, uint8(n))
	}
	*l = ints
	return nil
}

// TextLogprobs are the log-probabilities of a text completion.
type TextLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []float64            `json:"token_logprobs"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

// Usage counts tokens. The details are nil where the engine did not say:
// unknown is not zero.
type Usage struct {
	PromptTokens            int                `json:"prompt_tokens"`
	CompletionTokens        int                `json:"completion_tokens"`
	TotalTokens             int                `json:"total_tokens"`
	PromptTokensDetails     *PromptDetails     `json:"prompt_tokens_details,omitempty"`
	CompletionTokensDetails *CompletionDetails `json:"completion_tokens_details,omitempty"`
}

// PromptDetails is part of Usage.
type PromptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// CompletionDetails is part of Usage.
type CompletionDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// ModelList answers GET /v1/models.
type ModelList struct {
	Object string  `json:"object"`
	Data   []Model `json:"data"`
}

// Model is one entry of ModelList. MaxModelLen is vLLM's.
type Model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len,omitempty"`
}
