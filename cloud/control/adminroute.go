package control

import (
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"time"

	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/store"
)

// adminRoute is one row of the admin API's table. The types of its bodies and
// its parameters are in the row, so that the description that is served and
// the code that serves cannot differ.
type adminRoute struct {
	method, path string
	access       access
	id, summary  string
	params       []openapi.Param // of the query; others are refused
	in, out      any             // values of the bodies' types; nil: none
	status       int             // of success
	outType      string          // media type of what is not JSON
	replays      bool            // takes an Idempotency-Key
	serve        func(*Control, *adminCall) error
}

// none is the body of calls that have none; an empty object will do, too.
type none struct{}

// view is a route that reads, in one transaction of the caller.
func view[Out any](path string, acc access, id, summary string, params []openapi.Param, f func(*adminCall) (Out, error)) adminRoute {
	var out Out
	return adminRoute{method: http.MethodGet, path: path, access: acc, id: id, summary: summary, params: params, out: out, status: http.StatusOK,
		serve: func(c *Control, a *adminCall) error {
			var v Out
			err := c.store.View(a.ctx, a.actor(), func(tx *store.Store) (err error) {
				a.tx = tx
				v, err = f(a)
				return err
			})
			if err != nil {
				return err
			}
			reply(a.Context, http.StatusOK, v)
			return nil
		}}
}

// change is a route that changes something, in one transaction of the caller
// that also holds the entry in the audit log.
func change[In, Out any](method, path string, acc access, id, summary string, f func(*adminCall, In) (Out, *store.Change, error)) adminRoute {
	return changeWith(http.StatusOK, method, path, acc, id, summary, f)
}

// create is a change that adds an object.
func create[In, Out any](path string, acc access, id, summary string, f func(*adminCall, In) (Out, *store.Change, error)) adminRoute {
	return changeWith(http.StatusCreated, http.MethodPost, path, acc, id, summary, f)
}

func changeWith[In, Out any](status int, method, path string, acc access, id, summary string, f func(*adminCall, In) (Out, *store.Change, error)) adminRoute {
	var in In
	var out Out
	r := adminRoute{method: method, path: path, access: acc, id: id, summary: summary, in: in, out: out, status: status,
		replays: method == http.MethodPost}
	if _, empty := any(in).(none); empty {
		r.in = nil
	}
	r.serve = func(c *Control, a *adminCall) error {
		var in In
		body, err := readChange(a, r.in == nil)
		if err != nil {
			return err
		}
		if err := decodeBytes(body, &in); err != nil {
			return err
		}
		replay, err := c.replayOf(a, r, body)
		if err != nil {
			return err
		}
		got, err := c.store.Edit(a.ctx, a.actor(), replay, func(tx *store.Store) (store.Outcome, *store.Change, error) {
			a.tx = tx
			v, ch, err := f(a, in)
			if err != nil {
				return store.Outcome{}, nil, err
			}
			b, err := json.Marshal(v)
			return store.Outcome{Status: r.status, Body: b}, ch, err
		})
		if err != nil {
			return err
		}
		a.Writer.Header().Set("Content-Type", "application/json")
		a.Writer.WriteHeader(got.Status)
		_, _ = a.Writer.Write(got.Body) // the client may be gone
		return nil
	}
	return r
}

// readChange reads the body of a change; one that takes none may come without.
func readChange(a *adminCall, optional bool) ([]byte, error) {
	if optional && a.Request.ContentLength == 0 {
		return []byte("{}"), nil
	}
	return readBody(a.Context, maxBody)
}

// replayLife is for how long a retry finds the first call's answer.
const replayLife = 24 * time.Hour

const headerIdempotencyKey = "Idempotency-Key"

func (c *Control) replayOf(a *adminCall, r adminRoute, body []byte) (store.Replay, error) {
	key := a.GetHeader(headerIdempotencyKey)
	if key == "" {
		return store.Replay{}, nil
	}
	if !r.replays {
		return store.Replay{}, openai.BadRequest(headerIdempotencyKey, openai.CodeUnsupported,
			"%s is for POST: this call may be repeated without it", headerIdempotencyKey)
	}
	if !isName(key) {
		return store.Replay{}, openai.BadRequest(headerIdempotencyKey, openai.CodeInvalidValue,
			"%s: want at most 128 printable ASCII characters without spaces", headerIdempotencyKey)
	}
	h := sha256.New()
	h.Write([]byte(r.method + " " + a.Request.URL.Path + "\n"))
	h.Write(body)
	return store.Replay{Key: key, Request: [32]byte(h.Sum(nil)), Life: replayLife, Seal: c.sealer.seal, Open: c.sealer.open}, nil
}

// list is a page of objects. Next is given when there may be more.
type list[T any] struct {
	Object string `json:"object" enum:"list"`
	Data   []T    `json:"data"`
	Next   string `json:"next,omitempty" doc:"value of after for the next page"`
}

// pages makes a handler of a store's list.
func pages[T any](get func(a *adminCall, tenant string, p store.Page) ([]T, error), cursor func(T) string) func(*adminCall) (list[T], error) {
	return func(a *adminCall) (list[T], error) {
		l := list[T]{Object: "list"}
		tenant, p, err := a.page()
		if err != nil {
			return l, err
		}
		if l.Data, err = get(a, tenant, p); err != nil {
			return l, err
		}
		if n := len(l.Data); n > 0 && n == p.Limit {
			l.Next = cursor(l.Data[n-1])
		}
		return l, nil
	}
}
