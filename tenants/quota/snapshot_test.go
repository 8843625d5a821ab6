package quota

import (
	"testing"

	"github.com/weirhq/weir/tenants"
)

func TestFromSnapshot(t *testing.T) {
	s := &tenants.Snapshot{
		Tenants: []tenants.Tenant{{ID: "t1", Strict: true}, {ID: "t2"}},
		Classes: []tenants.Class{{Name: "free", EscalationsPerMinute: 2}, {Name: "paid"}},
		Limits: []tenants.Limit{
			{ID: "a", TenantID: "t1", Kind: tenants.LimitRequests, Window: tenants.PerMinute, Limit: 60, Burst: 5},
			{ID: "b", TenantID: "t1", KeyID: "*", Model: "m", Tier: tenants.Cloud, Class: "paid", Kind: tenants.LimitCost, Window: tenants.PerMonth, Limit: 9, Shadow: true},
			{ID: "c", TenantID: "t1", Kind: tenants.LimitConcurrent, Window: tenants.AtOnce, Limit: 4},
		},
	}
	all, err := FromSnapshot(s, true)
	if err != nil {
		t.Fatal(err)
	}
	t1 := all["t1"]
	if !t1.Options.Leased || !t1.Options.Strict || all["t2"].Options.Strict || len(t1.Limits) != 4 || len(all["t2"].Limits) != 1 {
		t.Fatalf("%+v", all)
	}
	want := Limit{ID: "b", Key: EachKey, Model: "m", Tier: "cloud", Class: "paid", Kind: Cost, Window: Month, Max: 9, Shadow: true}
	if t1.Limits[2] != want {
		t.Errorf("limit %+v, want %+v", t1.Limits[2], want)
	}
	a := account(t, all["t2"].Limits...)
	for i := range 3 {
		r := &Request{Class: "free", Amount: Amount{Requests: 1, Escalations: 1}}
		if v := a.Admit(r, noon, new(Reservation)); v.OK() != (i < 2) {
			t.Errorf("escalation %d: %+v", i, v)
		}
	}
	for _, bad := range []tenants.Limit{
		{ID: "x", TenantID: "nobody", Kind: tenants.LimitCost, Window: tenants.PerDay},
		{ID: "x", TenantID: "t1", Kind: "bytes", Window: tenants.PerDay},
		{ID: "x", TenantID: "t1", Kind: tenants.LimitCost, Window: "year"},
		{ID: "x", TenantID: "t1", Kind: tenants.LimitCost, Window: tenants.PerMinute},
	} {
		s.Limits = []tenants.Limit{bad}
		if _, err := FromSnapshot(s, true); err == nil {
			t.Errorf("%+v accepted", bad)
		}
	}
}

// The kinds and windows of the snapshot are those of this package.
func TestSnapshotNames(t *testing.T) {
	for _, k := range []tenants.LimitKind{
		tenants.LimitRequests, tenants.LimitInput, tenants.LimitOutput, tenants.LimitTotal,
		tenants.LimitCost, tenants.LimitEscalations, tenants.LimitConcurrent,
	} {
		if _, err := ParseKind(string(k)); err != nil {
			t.Error(err)
		}
	}
	for _, w := range []tenants.LimitWindow{tenants.PerMinute, tenants.PerDay, tenants.PerMonth, tenants.AtOnce} {
		if _, err := ParseWindow(string(w)); err != nil {
			t.Error(err)
		}
	}
}
