package pki

import (
	"crypto/tls"
	"sync"
	"time"
)

// sourceLife is short because a Source renews its certificate by itself.
const sourceLife = 30 * 24 * time.Hour

// Source hands out a certificate of the process's own and issues the next one
// well before the current one ends, so that a role may run for years. It is
// safe for concurrent use.
type Source struct {
	a    *Authority
	spec Spec

	mu      sync.Mutex
	current *tls.Certificate
	renew   time.Time
}

// Source returns a source of certificates for spec. It fails when spec is bad.
func (a *Authority) Source(spec Spec) (*Source, error) {
	if spec.Life <= 0 {
		spec.Life = sourceLife
	}
	s := &Source{a: a, spec: spec}
	_, err := s.get()
	return s, err
}

func (s *Source) get() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.a.now()
	if s.current != nil && now.Before(s.renew) {
		return s.current, nil
	}
	c, err := s.a.Issue(s.spec)
	if err != nil {
		return nil, err
	}
	s.current, s.renew = &c, now.Add(c.Leaf.NotAfter.Sub(now)*2/3)
	return s.current, nil
}

// GetCertificate is for a server's tls.Config.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.get() }

// GetClientCertificate is for a client's tls.Config.
func (s *Source) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return s.get()
}
