// Package demo gives a fresh cloud its first tenant, API key and join token,
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

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/pki"
)

// Names of what is made.
const (
	Tenant = "demo"
	key    = "demo-app"
	device = "demo-edge"
)

// Options say which cloud, and where the secrets go. An existing KeyFile or
// JoinFile is left alone.
type Options struct {
	CloudURL   string
	HTTP       *http.Client
	AdminToken string
	KeyFile    string // the application's key, mode 0600
	JoinFile   string // the device's join token, mode 0600; "" for none
}

// Ensure makes what is missing and returns the application's key.
func Ensure(ctx context.Context, o Options) (string, error) {
	tenant, err := o.tenant(ctx)
	if err != nil {
		return "", err
	}
	app, err := o.secret(ctx, o.KeyFile, "keys", tenant, key)
	if err != nil || o.JoinFile == "" {
		return app, err
	}
	_, err = o.secret(ctx, o.JoinFile, "join-tokens", tenant, device)
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
func (o Options) secret(ctx context.Context, file, kind, tenantID, name string) (string, error) {
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
	if err := o.call(ctx, http.MethodPost, kind, map[string]string{"tenant_id": tenantID, "name": name}, &made); err != nil {
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
