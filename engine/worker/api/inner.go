package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/prefix"
)

// maxSalt bounds a tenant's salt, in bytes.
const maxSalt = 256

// inner reads what only a gateway says of a request.
func (c *call) inner(r *http.Request, body openai.Body, lr *loop.Request) error {
	lr.Operation = c.operation
	if lr.Salt = r.Header.Get(contract.HeaderCacheSalt); len(lr.Salt) > maxSalt {
		return openai.BadRequest(contract.HeaderCacheSalt, openai.CodeInvalidValue, "%s is longer than %d bytes", contract.HeaderCacheSalt, maxSalt)
	}
	var err error
	if lr.Due, err = wanted(r.Header, contract.HeaderTTFT); err != nil {
		return err
	}
	if lr.TPOT, err = wanted(r.Header, contract.HeaderTPOT); err != nil {
		return err
	}
	if raw := body["priority"]; raw != nil && !isNull(raw) {
		if json.Unmarshal(raw, &lr.Priority) != nil {
			return openai.BadRequest("priority", openai.CodeInvalidValue, "priority must be an integer")
		}
		lr.Priority = min(max(lr.Priority, -maxPriority), maxPriority)
	}
	if raw := body["return_token_ids"]; raw != nil && !isNull(raw) && json.Unmarshal(raw, &c.tokenIDs) != nil {
		return openai.BadRequest("return_token_ids", openai.CodeInvalidValue, "return_token_ids must be true or false")
	}
	if err := c.resume(body["weir_resume"], lr); err != nil {
		return err
	}
	if c.m.PrefixCache {
		lr.Keys = prefix.Append(nil, c.m.Info.Fingerprint.String(), lr.Salt, body)
	}
	return nil
}

// wanted reads a time of an SLO, 0 where it is not given.
func wanted(h http.Header, name string) (time.Duration, error) {
	s := h.Get(name)
	if s == "" {
		return 0, nil
	}
	ms, err := strconv.Atoi(s)
	if err != nil || ms < 1 || ms > int(contract.MaxDeadline.Milliseconds()) {
		return 0, openai.BadRequest(name, openai.CodeInvalidValue, "%s must be whole milliseconds from 1", name)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// maxPriority bounds how far from 0 a priority is: one step is half a minute of
// waiting, which is how long a request may outlast the patience of its client.
const maxPriority = 16

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

// resumption is weir_resume.
type resumption struct {
	Text   string         `json:"text"`
	Tokens []engine.Token `json:"tokens"`
}

// resume makes the answer go on after one that another worker has begun.
func (c *call) resume(raw json.RawMessage, lr *loop.Request) error {
	if raw == nil || isNull(raw) {
		return nil
	}
	bad := func(why string) error {
		return openai.BadRequest("weir_resume", openai.CodeInvalidValue, "weir_resume %s", why)
	}
	var res resumption
	if json.Unmarshal(raw, &res) != nil {
		return bad("must be an object of text and tokens")
	}
	if slices.ContainsFunc(res.Tokens, func(t engine.Token) bool {
		return t < 0 || int(t) >= c.m.Info.Vocab || c.m.Pieces.IsEnd(t) && !c.req.IgnoreEOS
	}) {
		return bad("has a token that cannot stand inside an answer")
	}
	lr.Resumed = res.Tokens
	if len(res.Tokens) == 0 && res.Text != "" {
		var err error
		if lr.Resumed, err = c.m.Tokenizer.Tokenize(res.Text, false); err != nil {
			return bad("has a text that cannot be tokenised")
		}
		lr.Shown = len(c.m.Pieces.Text(lr.Resumed))
	} else if lr.Shown = beginning(c.m.Pieces.Text(res.Tokens), res.Text); lr.Shown < 0 {
		return bad("has a text that is not the beginning of its tokens' text")
	}
	if room := c.m.room(); len(lr.Prompt)+len(lr.Resumed) >= room {
		return contextError("weir_resume", room, "leaves no room for an answer")
	}
	c.resumed = res.Text
	return nil
}

// beginning is how many bytes of whole stand for text, which went through JSON:
// there a byte that is not UTF-8 became U+FFFD. It is -1 when whole does not
// begin with text.
func beginning(whole []byte, text string) int {
	at := 0
	for _, r := range text {
		got, n := utf8.DecodeRune(whole[at:])
		if got != r || n == 0 {
			return -1
		}
		at += n
	}
	return at
}
