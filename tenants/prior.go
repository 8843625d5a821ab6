package tenants

import "crypto/ed25519"

// Prior is what a tenant's other devices have learned of an edge model: where
// the calibration of a device starts. Package cascade/learn reads the values.
type Prior struct {
	TenantID    string    `json:"tenant_id"`
	Fingerprint string    `json:"fingerprint"` // of the edge model
	Features    []string  `json:"features"`
	Values      []float64 `json:"values"` // bias first, then one for each feature
	Devices     int       `json:"devices"`
}

const priorContext = "weir cascade prior v1\n"

// Sign returns the JSON of the prior's signed envelope.
func (p *Prior) Sign(key ed25519.PrivateKey) ([]byte, error) { return seal(p, priorContext, key) }

// VerifyPrior reads what Sign has made, as Verify does for snapshots.
func VerifyPrior(envelope []byte, trusted map[string]ed25519.PublicKey) (*Prior, error) {
	p := new(Prior)
	if err := open(envelope, priorContext, trusted, p); err != nil {
		return nil, err
	}
	return p, nil
}
