package gateway

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/weirhq/weir/internal/prefix"
)

// prefixKeys are the keys of the request's prefixes, by the fingerprints of the
// models that may serve it. They are made once.
func (a *admitted) prefixKeys() map[string][]prefix.Key {
	if a.keys == nil {
		a.keys = map[string][]prefix.Key{}
		for _, print := range a.g.opts.Pool.Fingerprints(a.ask.model.Pool) {
			a.keys[print] = prefix.Append(nil, print, a.salt(), a.ask.body)
		}
	}
	return a.keys
}

// salt keeps the tenant's prefixes apart from those of others, who could tell
// by an answer's speed what it has asked.
func (a *admitted) salt() string {
	sum := sha256.Sum256([]byte("weir cache salt\x00" + a.who.TenantID))
	return hex.EncodeToString(sum[:16])
}
