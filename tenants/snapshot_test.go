package tenants

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// world is a snapshot with keys in every state and their secrets.
func world(t testing.TB) (*Snapshot, map[string]Key) {
	keys := map[string]Key{}
	s := &Snapshot{
		Version: 7, IssuedAt: noon.Add(-time.Hour), ExpiresAt: noon.Add(24 * time.Hour),
		Tenants: []Tenant{{ID: "t1", Name: "Alder", State: Active}, {ID: "t2", Name: "Birch", State: Suspended}},
		Models:  []Model{{Name: "auto", Cascade: true}, {Name: "hub-edge", Tier: Edge}},
		Classes: []Class{{Name: "batch", Band: 2}, {Name: "interactive", TTFTMillis: 500, Default: true}},
		Prices:  []Price{{Version: 1, Tier: Cloud, Model: "*", Input: 150_000, CachedInput: 75_000, Output: 600_000}},
		Limits:  []Limit{{ID: "l1", TenantID: "t1", Kind: LimitRequests, Window: PerMinute, Limit: 60}},
		Policies: []Policy{
			{TenantID: "t1", Mode: "auto"},
			{TenantID: "t1", Class: "batch", Mode: "prefer-cloud", Spec: json.RawMessage(`{"policy":"gain"}`)},
		},
	}
	add := func(name, tenant string, state State, expires time.Time) {
		k, err := MintKeyFor(fmt.Sprintf("id%s", name))
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = k
		s.Keys = append(s.Keys, KeyInfo{
			ID: k.ID, TenantID: tenant, State: state, ExpiresAt: expires,
			Hashes: []SecretHash{{SHA256: HashSecret(k.Secret)}},
		})
	}
	add("good", "t1", Active, time.Time{})
	add("revoked", "t1", Revoked, time.Time{})
	add("expired", "t1", Active, noon)
	add("suspended", "t2", Active, time.Time{})
	// A rotation in its grace: the old secret holds until one minute past noon.
	old := keys["good"]
	fresh, err := MintKeyFor(old.ID)
	if err != nil {
		t.Fatal(err)
	}
	keys["fresh"] = fresh
	s.Keys[0].Hashes[0].NotAfter = noon.Add(time.Minute)
	s.Keys[0].Hashes = append(s.Keys[0].Hashes, SecretHash{SHA256: HashSecret(fresh.Secret)})
	s.Keys[0].Scopes = []string{"explain"}
	s.Keys[0].Classes = []string{"interactive"}
	return s, keys
}

func TestLookup(t *testing.T) {
	snap, keys := world(t)
	x, err := NewIndex(snap)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := MintKeyFor(keys["good"].ID)
	nobody, _ := MintKey()
	cases := []struct {
		name string
		key  string
		at   time.Time
		want error
	}{
		{"good", keys["good"].Reveal(), noon, nil},
		{"rotated in", keys["fresh"].Reveal(), noon, nil},
		{"old secret, last moment of grace", keys["good"].Reveal(), noon.Add(time.Minute - 1), nil},
		{"old secret after its grace", keys["good"].Reveal(), noon.Add(time.Minute), ErrKeyExpired},
		{"new secret after the grace", keys["fresh"].Reveal(), noon.Add(time.Minute), nil},
		{"wrong secret", other.Reveal(), noon, ErrUnknownKey},
		{"unknown id", nobody.Reveal(), noon, ErrUnknownKey},
		{"malformed", "sk-123", noon, ErrMalformed},
		{"revoked", keys["revoked"].Reveal(), noon, ErrKeyRevoked},
		{"before expiry", keys["expired"].Reveal(), noon.Add(-1), nil},
		{"at expiry", keys["expired"].Reveal(), noon, ErrKeyExpired},
		{"suspended tenant", keys["suspended"].Reveal(), noon, ErrTenantSuspended},
		{"snapshot too old", keys["fresh"].Reveal(), snap.ExpiresAt, ErrSnapshotExpired},
	}
	for _, c := range cases {
		id, err := x.Lookup(c.key, c.at)
		if !errors.Is(err, c.want) || (err == nil) != (id.TenantID == "t1") {
			t.Errorf("%s: %v, %v, want error %v", c.name, id.TenantID, err, c.want)
		}
	}
	if _, err := x.LookupID(keys["revoked"].ID, noon); !errors.Is(err, ErrKeyRevoked) {
		t.Errorf("LookupID of a revoked key: %v", err)
	}
	id, err := x.LookupID(keys["good"].ID, noon)
	if err != nil || !id.HasScope("explain") || id.HasScope("admin") || !id.MayUseModel("any") || id.MayUseClass("batch") {
		t.Errorf("LookupID: %+v, %v", id, err)
	}
	if c := x.DefaultClass(id); c == nil || c.Name != "interactive" {
		t.Errorf("default class %+v", c)
	}
	if c := x.DefaultClass(Identity{}); c == nil || c.Name != "interactive" {
		t.Errorf("default class without a key %+v", c)
	}
	if p := x.Policy("t1", "batch"); p == nil || p.Mode != "prefer-cloud" {
		t.Errorf("policy of a class %+v", p)
	}
	if p := x.Policy("t1", "interactive"); p == nil || p.Mode != "auto" {
		t.Errorf("policy of a tenant %+v", p)
	}
	if p := x.Policy("t2", "batch"); p != nil {
		t.Errorf("policy of a tenant without one %+v", p)
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	snap, keys := world(t)
	x, _ := NewIndex(snap)
	text := keys["fresh"].Reveal()
	if n := testing.AllocsPerRun(100, func() { _, _ = x.Lookup(text, noon) }); n != 0 {
		t.Errorf("Lookup allocates %v times", n)
	}
}

func TestNewIndexRefuses(t *testing.T) {
	for name, breakIt := range map[string]func(*Snapshot){
		"tenant twice":   func(s *Snapshot) { s.Tenants = append(s.Tenants, s.Tenants[0]) },
		"key twice":      func(s *Snapshot) { s.Keys = append(s.Keys, s.Keys[0]) },
		"unknown tenant": func(s *Snapshot) { s.Keys[0].TenantID = "nobody" },
		"malformed id":   func(s *Snapshot) { s.Keys[0].ID = "x_y" },
	} {
		s, _ := world(t)
		breakIt(s)
		if _, err := NewIndex(s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSignAndVerify(t *testing.T) {
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	snap, _ := world(t)
	env, err := snap.Sign(priv)
	if err != nil {
		t.Fatal(err)
	}
	trusted := map[string]ed25519.PublicKey{SignerID(pub): pub}
	got, err := Verify(env, trusted)
	if err != nil || !reflect.DeepEqual(got, snap) {
		t.Fatalf("Verify: %v\n got %+v\nwant %+v", err, got, snap)
	}
	otherPub, otherPriv, _ := ed25519.GenerateKey(nil)
	forged, _ := snap.Sign(otherPriv)
	var e Envelope
	if err := json.Unmarshal(env, &e); err != nil {
		t.Fatal(err)
	}
	changed := e
	changed.Payload = bytes.Replace(e.Payload, []byte(`"version":7`), []byte(`"version":8`), 1)
	renamed := e
	renamed.KeyID = SignerID(otherPub)
	encode := func(e Envelope) []byte { b, _ := json.Marshal(e); return b }
	for name, b := range map[string][]byte{
		"signed by a stranger": forged,
		"changed payload":      encode(changed),
		"renamed signer":       encode(renamed),
	} {
		if _, err := Verify(b, trusted); !errors.Is(err, ErrSnapshotSignature) {
			t.Errorf("%s: %v, want ErrSnapshotSignature", name, err)
		}
	}
	for _, b := range [][]byte{nil, []byte("{}x"), []byte(`{"payload":3}`), []byte(`{"extra":1}`)} {
		if _, err := Verify(b, trusted); err == nil {
			t.Errorf("Verify(%q) succeeded", b)
		}
	}
}

func FuzzVerify(f *testing.F) {
	pub, priv, _ := ed25519.GenerateKey(nil)
	snap, _ := world(f)
	env, _ := snap.Sign(priv)
	f.Add(env)
	f.Add([]byte(`{"payload":"e30=","signature":"","key_id":"x"}`))
	trusted := map[string]ed25519.PublicKey{SignerID(pub): pub}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Verify(b, trusted)
		if err == nil && s.Version != snap.Version {
			t.Errorf("accepted a snapshot that was never signed: %+v", s)
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	snap, keys := world(b)
	for i := range 10_000 {
		snap.Keys = append(snap.Keys, KeyInfo{ID: fmt.Sprintf("more%d", i), TenantID: "t1", State: Active})
	}
	x, err := NewIndex(snap)
	if err != nil {
		b.Fatal(err)
	}
	text := keys["fresh"].Reveal()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Lookup(text, noon); err != nil {
			b.Fatal(err)
		}
	}
}
