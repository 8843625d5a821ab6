package identity_test

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"testing"
)

// publicKey returns the public key of a PEM certificate, as bytes.
func publicKey(t *testing.T, leaf []byte) string {
	t.Helper()
	block, _ := pem.Decode(leaf)
	if block == nil {
		t.Fatal("no PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return string(cert.RawSubjectPublicKeyInfo)
}

func replace(path, old, with string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), old, with)), 0o600)
}
