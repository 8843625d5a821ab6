package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/openai"
)

// Admin calls the cloud's admin API.
type Admin struct {
	URL   string // of the cloud
	Token string
	HTTP  *http.Client
}

// adminTimeout bounds one call.
const adminTimeout = 10 * time.Second

// Call sends in as JSON where it is not nil, and decodes the answer into out
// where that is not nil. path is below /admin/v1/. An error of the API is an
// *openai.Error, wrapped with method and path.
func (a Admin) Call(ctx context.Context, method, path string, in, out any) error {
	if err := a.call(ctx, method, path, in, out); err != nil {
		return fmt.Errorf("admin API, %s %s: %w", method, path, err)
	}
	return nil
}

func (a Admin) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.URL, "/")+"/admin/v1/"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.Token)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return openai.ParseError(resp.StatusCode, data)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}
