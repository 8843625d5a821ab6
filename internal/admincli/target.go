package admincli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/up"
)

// target says which cloud to call and with what token. The token comes from a
// file or the environment, never from an argument, which everybody can read.
type target struct {
	cloudURL, readyFile, tokenFile, ca, idempotencyKey string
	timeout                                            time.Duration
}

func (t *target) define(fs *pflag.FlagSet) {
	fs.StringVar(&t.cloudURL, "cloud-url", "", "the cloud's URL (or WEIR_CLOUD_URL; default: the ready file's)")
	fs.StringVar(&t.readyFile, "ready-file", "", "ready file of 'weir up' (default: the one in its data directory)")
	fs.StringVar(&t.tokenFile, "admin-token-file", "", "file with an admin token (or WEIR_ADMIN_TOKEN; default: the ready file's)")
	fs.StringVar(&t.ca, "ca", "", "certificate of the cloud's authority, for its TLS address")
	fs.DurationVar(&t.timeout, "timeout", 30*time.Second, "longest wait for the answer")
	fs.StringVar(&t.idempotencyKey, "idempotency-key", "", "repeats an earlier call that was cut off; default a new one")
}

// resolve returns the URL and the token to use.
func (t *target) resolve(env cli.Env) (url, token string, err error) {
	url, token, err = t.find(env)
	if err == nil {
		err = checkURL(url)
	}
	return url, token, err
}

// checkURL keeps the token off networks that others can read.
func checkURL(s string) error {
	u, err := neturl.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return cli.Usagef("--cloud-url: want http://127.0.0.1:PORT or https://HOST:PORT")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return cli.Usagef("--cloud-url: plain http would show the admin token to the network: use https")
	}
	return nil
}

func (t *target) find(env cli.Env) (url, token string, err error) {
	if url = t.cloudURL; url == "" {
		url = env.Getenv("WEIR_CLOUD_URL")
	}
	if t.tokenFile != "" {
		data, err := os.ReadFile(t.tokenFile)
		if err != nil {
			return "", "", fmt.Errorf("--admin-token-file: %w", err)
		}
		token = strings.TrimSpace(string(data))
	} else {
		token = env.Getenv("WEIR_ADMIN_TOKEN")
	}
	if url != "" && token != "" {
		return url, token, nil
	}
	path := t.readyFile
	if path == "" {
		dir, err := up.DefaultData(env.Getenv)
		if err != nil {
			return "", "", err
		}
		path = filepath.Join(dir, up.ReadyName)
	}
	r, err := client.ReadReady(path)
	if err != nil {
		return "", "", fmt.Errorf("%w; or give --cloud-url and --admin-token-file", err)
	}
	if url == "" {
		url = r.CloudURL
	}
	if token == "" {
		token = r.AdminToken
	}
	return url, token, nil
}

func (t *target) http() (*http.Client, error) {
	var conf *tls.Config
	if t.ca != "" {
		pool, err := pki.LoadPool(t.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		conf = pki.ClientConfig(nil, pool, pki.RoleGateway)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}}, nil
}

// tries of a call whose answer did not arrive. The Idempotency-Key makes that
// safe: a key that was made is not made twice.
const tries = 3

// call sends one request and returns the answer's body.
func (t *target) call(ctx context.Context, env cli.Env, method, path string, body []byte) ([]byte, error) {
	var out bytes.Buffer
	err := t.stream(ctx, env, method, path, body, &out)
	return out.Bytes(), err
}

// stream sends one request and copies the answer's body to w.
func (t *target) stream(ctx context.Context, env cli.Env, method, path string, body []byte, w io.Writer) error {
	url, token, err := t.resolve(env)
	if err != nil {
		return err
	}
	hc, err := t.http()
	if err != nil {
		return err
	}
	defer hc.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if t.idempotencyKey == "" {
		t.idempotencyKey = uuid.NewString()
	}
	for n := 1; ; n++ {
		resp, err := t.send(ctx, hc, method, strings.TrimSuffix(url, "/")+"/admin/v1/"+path, token, body)
		if err != nil && n < tries && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("call the cloud: %w", err)
		}
		defer resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			e := openai.ParseError(resp.StatusCode, data)
			return errors.New(e.Message)
		}
		if _, err := io.Copy(w, resp.Body); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		return nil
	}
}

func (t *target) send(ctx context.Context, hc *http.Client, method, url, token string, body []byte) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPost {
		req.Header.Set("Idempotency-Key", t.idempotencyKey)
	}
	return hc.Do(req)
}
