package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
)

// Names of what weir up creates at its first start.
const (
	demoTenant = "demo"
	demoKey    = "demo-app"
	demoDevice = "this-machine"
)

// admin calls the cloud's admin API with the first start's token.
type admin struct {
	url, token string
}

func (a admin) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("admin %s: %w", path, err)
		}
		body = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, a.url+"/admin/v1/"+path, body)
	if err != nil {
		return fmt.Errorf("admin %s: %w", path, err)
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("admin %s: %w", path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return fmt.Errorf("admin %s: %w", path, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("admin %s: %w", path, openai.ParseError(resp.StatusCode, data))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("admin %s: %w", path, err)
	}
	return nil
}

type named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type listOf[T any] struct {
	Data []T `json:"data"`
}

// ensureDemo makes the demo tenant and its key at the first start, and a join
// token while the edge has not joined. Later starts find all that in the data
// directory. It returns the application's key.
func (s *supervisor) ensureDemo(ctx context.Context, a admin) (string, error) {
	var tenants listOf[named]
	if err := a.call(ctx, http.MethodGet, "tenants", nil, &tenants); err != nil {
		return "", err
	}
	var tenant named
	for _, t := range tenants.Data {
		if t.Name == demoTenant {
			tenant = t
		}
	}
	if tenant.ID == "" {
		if err := a.call(ctx, http.MethodPost, "tenants", map[string]string{"name": demoTenant}, &tenant); err != nil {
			return "", err
		}
	}
	key, err := s.ensureKey(ctx, a, tenant.ID)
	if err != nil {
		return "", err
	}
	return key, s.ensureJoinToken(ctx, a, tenant.ID)
}

func (s *supervisor) ensureKey(ctx context.Context, a admin, tenantID string) (string, error) {
	path := s.path("secrets", "demo-key")
	if data, err := os.ReadFile(path); err == nil {
		return strings.TrimSpace(string(data)), nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("demo key: %w", err)
	}
	var made struct {
		Key string `json:"key"`
	}
	if err := a.call(ctx, http.MethodPost, "keys", map[string]string{"tenant_id": tenantID, "name": demoKey}, &made); err != nil {
		return "", err
	}
	return made.Key, pki.WriteSecret(path, []byte(made.Key+"\n"))
}

// edgeJoined reports whether the edge has its identity already.
func (l layout) edgeJoined() bool {
	_, err := os.Stat(l.path("edge", "identity"))
	return err == nil
}

func (s *supervisor) ensureJoinToken(ctx context.Context, a admin, tenantID string) error {
	if s.edgeJoined() {
		return nil
	}
	var made struct {
		Token string `json:"token"`
	}
	if err := a.call(ctx, http.MethodPost, "join-tokens", map[string]string{"tenant_id": tenantID, "name": demoDevice}, &made); err != nil {
		return err
	}
	return pki.WriteSecret(s.joinToken(), []byte(made.Token+"\n"))
}
