package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/weirhq/weir/internal/openai"
)

// ErrUnknown says that no instance has the name.
var ErrUnknown = errors.New("no such instance")

// maxAnswer bounds what an instance answers to a Call, in bytes.
const maxAnswer = 16 << 20

// Call asks an instance's own REST (/instance/v1), for operators. In is sent as
// JSON unless it is nil; the answer is decoded into out. The error is
// ErrUnknown, or an *openai.Error: the instance's own 404 or 409, the former in
// other words for an engine that is no Weir worker, else a 502.
func (p *Pool) Call(ctx context.Context, name, method, path string, in, out any) error {
	p.mu.Lock()
	inst := p.find(name)
	worker := inst != nil && inst.epoch != "" // other engines have none
	p.mu.Unlock()
	if inst == nil {
		return fmt.Errorf("%w: %.80q", ErrUnknown, name)
	}
	err := p.call(ctx, inst, method, path, in, out)
	if e := (*openai.Error)(nil); !worker && errors.As(err, &e) && e.Status == http.StatusNotFound {
		e.Message = fmt.Sprintf("instance %s is no Weir worker: it takes no orders", inst.Name)
	}
	return err
}

func (p *Pool) call(ctx context.Context, inst *instance, method, path string, in, out any) error {
	status, body, err := p.exchange(ctx, method, inst.URL+path, in)
	switch {
	case err != nil:
		return unreachable(inst.Name, err)
	case status == http.StatusNotFound || status == http.StatusConflict:
		return openai.ParseError(status, body)
	case status != http.StatusOK:
		return unreachable(inst.Name, openai.ParseError(status, body))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return unreachable(inst.Name, fmt.Errorf("answer: %w", err))
	}
	return nil
}

func unreachable(name string, cause error) error {
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: openai.CodeUpstream,
		Message: fmt.Sprintf("instance %s cannot be asked: see 'weir pools status'", name), Cause: cause}
}

func (p *Pool) exchange(ctx context.Context, method, url string, in any) (status int, body []byte, err error) {
	var send io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		send = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, send)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.opts.Client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if len(body) > maxAnswer {
		return 0, nil, fmt.Errorf("answer is longer than %d bytes", maxAnswer)
	}
	return resp.StatusCode, body, err
}
