package member

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/internal/pki"
)

// identity is a worker's folder: the key from the first try on, the authority
// and the certificate once it has joined. All files have mode 0600.
type identity struct{ dir string }

func (id identity) path(name string) string { return filepath.Join(id.dir, name) }

// key returns the worker's key, which is made when it is missing: a try after a
// lost answer shows the same key.
func (id identity) key() ([]byte, error) {
	key, err := pki.ReadSecret(id.path(pki.KeyFile))
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := os.MkdirAll(id.dir, 0o700); err != nil {
		return nil, err
	}
	if key, err = pki.NewKey(); err != nil {
		return nil, err
	}
	return key, pki.WriteSecret(id.path(pki.KeyFile), key)
}

// processFile names the process that was started last with this folder.
const processFile = "process"

// begin makes this process the folder's newest.
func (id identity) begin(process string) error {
	if err := os.MkdirAll(id.dir, 0o700); err != nil {
		return err
	}
	return pki.WriteSecret(id.path(processFile), []byte(process))
}

// newest reports whether no process was started with this folder since.
func (id identity) newest(process string) (bool, error) {
	last, err := os.ReadFile(id.path(processFile))
	return string(last) == process, err
}

// save keeps the certificate, and before it the authority where it is given.
func (id identity) save(r *JoinReply) error {
	if r.CA != "" {
		if err := pki.WriteSecret(id.path(pki.CAFile), []byte(r.CA)); err != nil {
			return err
		}
	}
	return pki.WriteSecret(id.path(pki.CertFile), []byte(r.Certificate))
}

// errNone says that the worker has not joined, or too long ago.
var errNone = errors.New("this worker has not joined a cloud")

// load reads what save has kept. A certificate that has ended is none.
func (id identity) load(name string) (*holder, *x509.CertPool, error) {
	if _, err := os.Stat(id.path(pki.CertFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errNone
	}
	own, err := pki.LoadStatic(id.path(pki.CertFile), id.path(pki.KeyFile))
	if err != nil {
		return nil, nil, err
	}
	peer, err := pki.Identity(own.Leaf)
	switch {
	case err != nil:
		return nil, nil, err
	case peer.Role != pki.RoleWorker || peer.Name != name:
		return nil, nil, fmt.Errorf("the certificate in %s is for %s %s, not for worker %s: use another data_dir, or that name", id.dir, peer.Role, peer.Name, name)
	case time.Now().After(own.Leaf.NotAfter):
		return nil, nil, errNone
	}
	trust, err := pki.LoadPool(id.path(pki.CAFile))
	if err != nil {
		return nil, nil, err
	}
	h := &holder{}
	h.now.Store((*tls.Certificate)(own))
	return h, trust, nil
}

// holder shows the newest certificate. It implements pki.Holder.
type holder struct {
	now atomic.Pointer[tls.Certificate]
}

func (h *holder) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return h.now.Load(), nil
}

func (h *holder) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return h.now.Load(), nil
}

// renewAt is when two thirds of the certificate's life are over.
func (h *holder) renewAt() time.Time {
	leaf := h.now.Load().Leaf
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3)
}
