package upstream

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// maxWhole bounds an answer of Whole, bytes.
const maxWhole = 1 << 20

// Whole sends a request as it is, and returns an answer that comes at once. A
// refusal of the request itself is an *openai.Error with a status 4xx.
func (w *Worker) Whole(ctx context.Context, ask Ask) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+ask.Kind.Path(), bytes.NewReader(ask.Body.JSON()))
	if err != nil {
		return nil, err
	}
	for k, v := range ask.Header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, refusal(resp)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxWhole+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTruncated, err)
	}
	if len(data) > maxWhole {
		return nil, fmt.Errorf("%w: the answer is longer than %d bytes", ErrTruncated, maxWhole)
	}
	return data, nil
}
