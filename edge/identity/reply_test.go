package identity

import (
	"encoding/json"
	"testing"
)

// Whatever a cloud answers, without the device's key it is no identity.
func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"certificate":"x","ca":"y","device_id":"d","tenant_id":"t","snapshot_key":"AAAA"}`))
	f.Add([]byte(`{"snapshot_key":[1]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r joinReply
		if json.Unmarshal(body, &r) != nil {
			return
		}
		if r.identity("https://cloud", nil).check() == nil {
			t.Error("an identity without a key is accepted")
		}
	})
}
