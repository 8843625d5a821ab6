// Package demo gives a fresh cloud its first tenant, API key and join tokens,
// through the admin API. weir up does so at its first start; "weir demo" does
// it for docker-compose.yml.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/pki"
)

// Names of what is made.
const (
	Tenant = "demo"
	key    = "demo-app"
	device = "demo-edge"
	worker = "demo-workers"
)

// Life and uses of the workers' token.
const (
	workerTokenLife = 30 * 24 * time.Hour
	workerTokenUses = 16
)

// Options say which cloud, and where the secrets go. Existing files
// are left alone.
type Options struct {
	CloudURL   string
	HTTP       *http.Client
	AdminToken string
	KeyFile    string // the application's key, mode 0600
	JoinFile   string // the device's join token, mode 0600; "" for none
	WorkerFile string // the workers' join token, mode 0600; "" for none
}

// Ensure makes what is missing and returns the application's key.
func Ensure(ctx context.Context, o Options) (string, error) {
	tenant, err := o.tenant(ctx)
	if err != nil {
		return "", err
	}
	app, err := o.secret(ctx, o.KeyFile, "keys", map[string]any{"tenant_id": tenant, "name": key})
	if err == nil && o.JoinFile != "" {
		_, err = o.secret(ctx, o.JoinFile, "join-tokens", map[string]any{"tenant_id": tenant, "name": device})
	}
	if err == nil && o.WorkerFile != "" {
		_, err = o.secret(ctx, o.WorkerFile, "worker-tokens",
			map[string]any{"name": worker, "uses": workerTokenUses, "ttl_seconds": int(workerTokenLife.Seconds())})
	}
	return app, err
}

type named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func (o Options) tenant(ctx context.Context) (string, error) {
	var list struct {
		Data []named `json:"data"`
	}
	if err := o.call(ctx, http.MethodGet, "tenants", nil, &list); err != nil {
		return "", err
	}
	for _, t := range list.Data {
		if t.Name == Tenant {
			return t.ID, nil
		}
	}
	var made named
	err := o.call(ctx, http.MethodPost, "tenants", map[string]string{"name": Tenant}, &made)
	return made.ID, err
}

// secret returns the content of file, or creates an object of kind whose
// answer shows a secret once, and keeps it there.
func (o Options) secret(ctx context.Context, file, kind string, object map[string]any) (string, error) {
	data, err := os.ReadFile(file)
	if err == nil {
		return strings.TrimSpace(string(data)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("demo %s: %w", kind, err)
	}
	var made struct {
		Key   string `json:"key"`
		Token string `json:"token"`
	}
	if err := o.call(ctx, http.MethodPost, kind, object, &made); err != nil {
		return "", err
	}
	text := made.Key + made.Token // one of them is there
	if text == "" {
		return "", fmt.Errorf("demo %s: the answer holds no secret", kind)
	}
	return text, pki.WriteSecret(file, []byte(text+"\n"))
}

func (o Options) call(ctx context.Context, method, path string, in, out any) error {
	return client.Admin{URL: o.CloudURL, Token: o.AdminToken, HTTP: o.HTTP}.Call(ctx, method, path, in, out)
}
