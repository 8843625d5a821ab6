package identity

import (
	"errors"
	"testing"
)

func TestDecodeReply(t *testing.T) {
	for _, tt := range []struct {
		status        int
		body          string
		refused, busy bool
		ok            bool
	}{
		{200, `{"device_id":"d","snapshot_key":"AAAA"}`, false, false, true},
		{201, `{}`, false, false, true},
		{200, `[]`, false, false, false},
		{401, `{"error":{"message":"used"}}`, true, false, false},
		{409, ``, true, false, false},
		{429, `{}`, false, true, false},
		{503, `<html>`, false, true, false},
	} {
		r, err := decodeReply(tt.status, []byte(tt.body))
		if (err == nil) != tt.ok || errors.Is(err, ErrRefused) != tt.refused || errors.Is(err, errBusy) != tt.busy || (r == nil) == tt.ok {
			t.Errorf("%d %s: %v", tt.status, tt.body, err)
		}
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add(200, []byte(`{"certificate":"x","ca":"y","device_id":"d","tenant_id":"t","snapshot_key":"AAAA"}`))
	f.Add(200, []byte(`{"snapshot_key":[1]}`))
	f.Add(500, []byte(`{"error":"x"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		r, err := decodeReply(status, body)
		if (r == nil) == (err == nil) {
			t.Error("an answer and an error, or neither")
		}
		if r == nil {
			return
		}
		id := Identity{DeviceID: r.DeviceID, TenantID: r.TenantID, SnapshotKey: r.SnapshotKey, certPEM: []byte(r.Certificate), caPEM: []byte(r.CA)}
		if id.check() == nil {
			t.Error("an identity without a key is accepted")
		}
	})
}
