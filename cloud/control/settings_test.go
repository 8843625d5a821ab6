package control

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// A policy that no edge would take into force is refused where it is written,
// with the member and the reason.
func TestPolicySettingsAreChecked(t *testing.T) {
	for _, tt := range []struct{ spec, why string }{
		{``, ""},
		{`null`, ""},
		{`{"name":"fifth","rate":0.2}`, ""},
		{`{"rate":0.2,"threshold":0.5}`, "both set the threshold"},
		{`{"kind":"threshold"}`, "unknown field"},
		{`{"privacy":"local-only","shadow":0.1}`, "local-only"},
		{`{"privacy":"local-only","hedge":true}`, "local-only"},
		{`{"risk":{"alpha":0.0001,"delta":0.1,"max_rate":1}}`, "infeasible"},
	} {
		_, err := checkSettings(&store.Policy{TenantID: "t", Spec: json.RawMessage(tt.spec)})
		var field *tenants.FieldError
		if (err == nil) != (tt.why == "") || err != nil && (!errors.As(err, &field) || field.Field != "spec" || !strings.Contains(err.Error(), tt.why)) {
			t.Errorf("%s: %v", tt.spec, err)
		}
	}
}
