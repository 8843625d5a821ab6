package identity

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

// ErrRefused says that the cloud refused the join token: it is used, expired
// or unknown. The message is the cloud's.
var ErrRefused = errors.New("the cloud refused the join token")

// PathJoin is where a device joins.
const PathJoin = "/edge/v1/join"

const (
	joinTimeout  = 15 * time.Second
	maxJoinReply = 1 << 20
)

// joinRequest and joinReply are the bodies of POST /edge/v1/join.
type joinRequest struct {
	Token string `json:"token"`
	CSR   string `json:"csr"` // PEM
}

type joinReply struct {
	Certificate string `json:"certificate"` // PEM
	CA          string `json:"ca"`          // PEM
	DeviceID    string `json:"device_id"`
	TenantID    string `json:"tenant_id"`
	SnapshotKey []byte `json:"snapshot_key"` // Ed25519 public key
}

// Join makes a device key, has the cloud certify it against the join token and
// saves the identity to dir. The token's secret is sent only to a server whose
// authority has the token's pin. The key is on disk before the request, so
// that a second try after a lost answer shows the same key.
func Join(ctx context.Context, dir, cloudURL string, token tenants.JoinToken) (*Identity, error) {
	base, err := url.Parse(cloudURL)
	if err != nil || base.Scheme != "https" || base.Host == "" || base.User != nil {
		return nil, errors.New("join: the cloud's address must look like https://host:port")
	}
	keyPEM, key, err := pendingKey(dir)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("join: certificate request: %w", err)
	}
	reply, err := post(ctx, base, token, joinRequest{
		Token: token.Reveal(),
		CSR:   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})),
	})
	if err != nil {
		return nil, err
	}
	if err := checkCA(reply.CA, token.Pin); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	id := &Identity{
		DeviceID: reply.DeviceID, TenantID: reply.TenantID, SnapshotKey: reply.SnapshotKey,
		CloudURL: (&url.URL{Scheme: "https", Host: base.Host}).String(),
		certPEM:  []byte(reply.Certificate), keyPEM: keyPEM, caPEM: []byte(reply.CA),
	}
	if err := id.Save(dir); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	_ = os.Remove(pendingPath(dir)) // a left-over is only ever reused for a new join
	return id, nil
}

func post(ctx context.Context, base *url.URL, token tenants.JoinToken, body joinRequest) (*joinReply, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	tr := &http.Transport{
		TLSClientConfig:   pki.JoinConfig(token.Pin, base.Hostname()),
		ForceAttemptHTTP2: true,
		DialContext:       (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}
	defer tr.CloseIdleConnections()
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	target := url.URL{Scheme: "https", Host: base.Host, Path: PathJoin}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", base.Host, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxJoinReply))
	if err != nil {
		return nil, fmt.Errorf("join %s: read answer: %w", base.Host, err)
	}
	return decodeReply(resp.StatusCode, answer)
}

func decodeReply(status int, answer []byte) (*joinReply, error) {
	switch {
	case status/100 == 4 && status != http.StatusTooManyRequests:
		return nil, fmt.Errorf("%w: %s: ask the operator for a new token", ErrRefused, openai.ParseError(status, answer).Message)
	case status/100 != 2:
		return nil, fmt.Errorf("join: %w: %d: %s", errBusy, status, openai.ParseError(status, answer).Message)
	}
	var r joinReply
	if err := json.Unmarshal(answer, &r); err != nil {
		return nil, fmt.Errorf("join: the cloud's answer is not understood: %w", err)
	}
	return &r, nil
}

// checkCA makes sure that the authority to be trusted from now on is the one
// that the token's pin names.
func checkCA(caPEM string, pin tenants.Pin) error {
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

func pendingPath(dir string) string { return dir + ".pending-key.pem" }

// pendingKey returns the key of an earlier, unfinished join, or a new one.
func pendingKey(dir string) ([]byte, crypto.Signer, error) {
	path := pendingPath(dir)
	if raw, err := readPrivate(path); err == nil {
		if key, err := parseKey(raw); err == nil {
			return raw, key, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make device key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode device key: %w", err)
	}
	raw := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	return raw, key, pki.WriteSecret(path, raw)
}

func parseKey(raw []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, errors.New("no PEM key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a PKCS#8 key")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("a key that cannot sign")
	}
	return signer, nil
}

// Temporary reports whether another try may succeed: the cloud was not there
// or was busy. A refused token and a wrong pin stay wrong.
func Temporary(err error) bool {
	if errors.Is(err, ErrRefused) || errors.Is(err, errBusy) {
		return errors.Is(err, errBusy)
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF)
}

// errBusy says that the cloud answered, but not now.
var errBusy = errors.New("the cloud cannot take a join now")
