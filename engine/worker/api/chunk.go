package api

import (
	"strconv"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/internal/openai"
)

// endText is how an end token is called where tokens have names.
const endText = "</s>"

// shape knows how one request's answers are written.
type shape struct {
	chat         bool
	id, model    string
	created      int64
	logprobs     bool
	top          int
	tokenIDs     bool
	offset       int // of the next token in the text, for text completions
	includeUsage bool
	pieces       *loop.Pieces
}

func (s *shape) object(stream bool) string {
	switch {
	case !s.chat:
		return openai.ObjectCompletion
	case stream:
		return openai.ObjectChatChunk
	}
	return openai.ObjectChat
}

// chunks writes a stream's chunks by hand into one buffer: a chunk per token is
// the hottest JSON of a worker.
type chunks struct {
	shape
	head []byte // up to the choice's delta
	buf  []byte
}

func newChunks(s shape, stream bool) *chunks {
	c := &chunks{shape: s}
	h := append(c.head, `{"id":`...)
	h = appendString(h, []byte(s.id))
	h = append(h, `,"object":"`...)
	h = append(h, s.object(stream)...)
	h = append(h, `","created":`...)
	h = strconv.AppendInt(h, s.created, 10)
	h = append(h, `,"model":`...)
	h = appendString(h, []byte(s.model))
	c.head = append(h, `,"choices":[`...)
	return c
}

// role is the first chunk of a chat.
func (c *chunks) role() []byte {
	c.buf = append(append(c.buf[:0], c.head...), `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`...)
	return c.end()
}

// text is a chunk with text and the tokens behind it.
func (c *chunks) text(text []byte, tokens, top []sample.Logprob) []byte {
	b := append(append(c.buf[:0], c.head...), `{"index":0,`...)
	if c.chat {
		b = append(b, `"delta":{"content":`...)
		b = append(appendString(b, text), '}')
	} else {
		b = append(b, `"text":`...)
		b = appendString(b, text)
	}
	c.buf = append(c.appendTokens(b, tokens, top), `,"finish_reason":null}`...)
	return c.end()
}

// finish is the last chunk with a choice. Tokens without text (the end token)
// come with it.
func (c *chunks) finish(why loop.Finish, tokens, top []sample.Logprob) []byte {
	b := append(append(c.buf[:0], c.head...), `{"index":0,`...)
	if c.chat {
		b = append(b, `"delta":{}`...)
	} else {
		b = append(b, `"text":""`...)
	}
	b = append(c.appendTokens(b, tokens, top), `,"finish_reason":"`...)
	c.buf = append(append(b, why...), `"}`...)
	return c.end()
}

// usage is the chunk after the last one, when the client asked for it.
func (c *chunks) usage(r loop.Result) []byte {
	b := append(append(c.buf[:0], c.head...), ']')
	c.buf = append(appendUsage(b, r), '}')
	return c.buf
}

// whole is an answer that is not streamed, with one more member unless its value
// is nil.
func (c *chunks) whole(a loop.Batch, r loop.Result, member string, value []byte) []byte {
	b := append(append(c.buf[:0], c.head...), `{"index":0,`...)
	if c.chat {
		b = append(b, `"message":{"role":"assistant","content":`...)
		b = append(appendString(b, a.Text), `,"refusal":null}`...)
	} else {
		b = append(b, `"text":`...)
		b = appendString(b, a.Text)
	}
	b = append(c.appendTokens(b, a.Tokens, a.Top), `,"finish_reason":"`...)
	b = appendUsage(append(append(b, a.Finish...), `"}]`...), r)
	if value != nil {
		b = append(append(append(b, `,"`...), member...), `":`...)
		b = append(b, value...)
	}
	c.buf = append(b, '}')
	return c.buf
}

func appendUsage(b []byte, r loop.Result) []byte {
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(r.PromptTokens), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(r.CompletionTokens), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(r.PromptTokens+r.CompletionTokens), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(r.CachedTokens), 10)
	return append(b, `}}`...)
}

func (c *chunks) end() []byte {
	c.buf = append(c.buf, ']')
	if c.includeUsage {
		c.buf = append(c.buf, `,"usage":null`...)
	}
	c.buf = append(c.buf, '}')
	return c.buf
}

// appendTokens appends what the client asked to know of the tokens.
func (c *chunks) appendTokens(b []byte, tokens, top []sample.Logprob) []byte {
	b = c.appendLogprobs(b, tokens, top)
	if !c.tokenIDs {
		return b
	}
	b = append(b, `,"token_ids":[`...)
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(t.Token), 10)
	}
	return append(b, ']')
}

func (c *chunks) appendLogprobs(b []byte, tokens, top []sample.Logprob) []byte {
	if !c.logprobs || len(tokens) == 0 {
		return append(b, `,"logprobs":null`...)
	}
	if !c.chat {
		return c.appendTextLogprobs(append(b, `,"logprobs":`...), tokens, top)
	}
	b = append(b, `,"logprobs":{"content":[`...)
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(c.appendEntry(b, t), `,"top_logprobs":[`...)
		for k, alt := range top[i*c.top : (i+1)*c.top] {
			if k > 0 {
				b = append(b, ',')
			}
			b = append(c.appendEntry(b, alt), '}')
		}
		b = append(b, `]}`...)
	}
	return append(b, `],"refusal":null}`...)
}

// appendEntry appends an entry's first members and leaves its object open.
func (s *shape) appendEntry(b []byte, t sample.Logprob) []byte {
	name, piece := s.name(t.Token)
	b = append(b, `{"token":`...)
	b = append(appendString(b, name), `,"logprob":`...)
	b = append(appendLogprob(b, t.Logprob), `,"bytes":`...)
	return appendBytes(b, piece)
}

// name gives a token's name and bytes; an end token has no bytes.
func (s *shape) name(t engine.Token) (name, piece []byte) {
	if s.pieces.IsEnd(t) {
		return []byte(endText), nil
	}
	piece = s.pieces.Bytes(t)
	return piece, piece
}

func (c *chunks) appendTextLogprobs(b []byte, tokens, top []sample.Logprob) []byte {
	list := func(b []byte, member string, each func(b []byte, i int) []byte) []byte {
		b = append(append(append(b, '"'), member...), `":[`...)
		for i := range tokens {
			if i > 0 {
				b = append(b, ',')
			}
			b = each(b, i)
		}
		return append(b, ']')
	}
	b = list(append(b, '{'), "tokens", func(b []byte, i int) []byte {
		name, _ := c.name(tokens[i].Token)
		return appendString(b, name)
	})
	b = list(append(b, ','), "token_logprobs", func(b []byte, i int) []byte { return appendLogprob(b, tokens[i].Logprob) })
	b = list(append(b, ','), "top_logprobs", func(b []byte, i int) []byte {
		return c.appendTopObject(b, top[i*c.top:(i+1)*c.top])
	})
	b = list(append(b, ','), "text_offset", func(b []byte, i int) []byte {
		at := c.offset
		_, piece := c.name(tokens[i].Token)
		c.offset += len(piece)
		return strconv.AppendInt(b, int64(at), 10)
	})
	return append(b, '}')
}

// appendTopObject writes alternatives as an object. Parts of UTF-8 sequences
// look alike in JSON; an object must not repeat a member, so only the likeliest
// of them stays.
func (c *chunks) appendTopObject(b []byte, top []sample.Logprob) []byte {
	b = append(b, '{')
	seen := make(map[string]bool, len(top))
	for _, alt := range top {
		name, _ := c.name(alt.Token)
		member := string(appendString(nil, name))
		if seen[member] {
			continue
		}
		if len(seen) > 0 {
			b = append(b, ',')
		}
		seen[member] = true
		b = appendLogprob(append(append(b, member...), ':'), alt.Logprob)
	}
	return append(b, '}')
}
