// Package enroll is how a process that holds nothing but a join token gets a
// certificate: a device, or a worker. The token names its cloud's authority by a
// pin, and its secret is sent to nobody else.
package enroll

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

const (
	maxTokenFile = 4 << 10
	maxAnswer    = 1 << 20
	postTimeout  = 15 * time.Second
	dialTimeout  = 5 * time.Second
)

// ErrRefused says that the cloud refused; the message is the cloud's, and the
// *openai.Error is in the chain.
var ErrRefused = errors.New("the cloud refused")

// errBusy says that the cloud answered, but not now.
var errBusy = errors.New("the cloud cannot answer now")

// ReadToken parses a join token, given as text or in a file. Its secret is in no
// error.
func ReadToken(text, file string) (tenants.JoinToken, error) {
	if text == "" && file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return tenants.JoinToken{}, fmt.Errorf("join_token_file: %w", err)
		}
		if len(raw) > maxTokenFile {
			return tenants.JoinToken{}, fmt.Errorf("join_token_file: %s is too long to hold a join token", file)
		}
		text = string(bytes.TrimSpace(raw))
	}
	token, err := tenants.ParseJoinToken(text)
	if err != nil {
		return tenants.JoinToken{}, fmt.Errorf("join token: %w", err)
	}
	return token, nil
}

// Base reads the address of a cloud.
func Base(cloud string) (*url.URL, error) {
	base, err := url.Parse(cloud)
	if err != nil || base.Scheme != "https" || base.Hostname() == "" || base.User != nil {
		return nil, fmt.Errorf("%.80q is not the address of a cloud: it looks like https://host:port", cloud)
	}
	return &url.URL{Scheme: base.Scheme, Host: base.Host}, nil
}

// Join posts in, which holds the token's secret, to a cloud whose authority has
// the token's pin.
func Join(ctx context.Context, base *url.URL, pin tenants.Pin, path string, in, out any) error {
	c := Client(pki.JoinConfig(pin, base.Hostname()))
	defer c.CloseIdleConnections()
	return Post(ctx, c, base, path, in, out)
}

// Client makes a client for Post. It follows no redirect: what is posted is for
// the host that was asked.
func Client(conf *tls.Config) *http.Client {
	return &http.Client{
		Timeout: postTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext},
	}
}

// Post sends in as JSON and reads the answer into out. The error wraps
// ErrRefused where another try is useless: see Temporary.
func Post(ctx context.Context, c *http.Client, base *url.URL, path string, in, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base.JoinPath(path).String(), bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: read answer: %w", base.Host, err)
	}
	return decode(base.Host, resp.StatusCode, answer, out)
}

func decode(host string, status int, answer []byte, out any) error {
	switch {
	case status/100 == 4 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout:
		return fmt.Errorf("%w: %w", ErrRefused, openai.ParseError(status, answer))
	case status/100 != 2:
		return fmt.Errorf("%s: %w: %d: %s", host, errBusy, status, openai.ParseError(status, answer).Message)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s: the cloud's answer is not understood: %w", host, err)
	}
	return nil
}

// Temporary reports whether another try may succeed: the cloud was not there,
// or was busy. What it refused stays refused, and a wrong pin stays wrong.
func Temporary(err error) bool {
	var op *net.OpError
	broken := errors.As(err, &op) && op.Op != "remote error" && op.Op != "local error" // which are TLS alerts
	return broken || errors.Is(err, errBusy) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// CheckCA makes sure that the authority to be trusted from now on is the one that
// the token's pin names.
func CheckCA(caPEM string, pin tenants.Pin) error {
	block, _ := pem.Decode([]byte(caPEM))
	if block == nil {
		return errors.New("the cloud sent no CA certificate")
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("the cloud's CA certificate: %w", err)
	}
	if !ca.IsCA || !pin.Matches(ca.RawSubjectPublicKeyInfo) {
		return errors.New("the CA that the cloud sent does not have the pin of the join token")
	}
	return nil
}
