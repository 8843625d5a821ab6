package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) { os.Exit(testpg.Run(m)) }

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(testpg.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func tenant(t *testing.T, s *Store, name string) Tenant {
	t.Helper()
	v, err := s.CreateTenant(t.Context(), NewTenant{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// index loads a snapshot as a gateway does.
func index(t *testing.T, s *Store) *tenants.Index {
	t.Helper()
	snap, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x, err := tenants.NewIndex(snap)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestKeyFromCreationToRevocation(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	k, secret, err := s.CreateKey(t.Context(), NewKey{TenantID: a.ID, Name: "ci", Scopes: []string{"explain"}, Models: []string{"auto"}, ExpiresAt: &soon})
	if err != nil {
		t.Fatal(err)
	}
	id, err := index(t, s).Lookup(secret.Reveal(), time.Now())
	if err != nil || id.TenantID != a.ID || id.KeyID != k.ID || !id.HasScope("explain") || id.MayUseModel("hub-cloud") {
		t.Fatalf("identity %+v, %v", id, err)
	}
	if _, err := index(t, s).Lookup(secret.Reveal(), soon); !errors.Is(err, tenants.ErrKeyExpired) {
		t.Errorf("at its expiry: %v", err)
	}

	r, next, err := s.RotateKey(t.Context(), a.ID, k.ID, 10*time.Minute)
	if err != nil || r.ID != k.ID || r.RotatedAt == nil || r.GraceUntil == nil {
		t.Fatalf("rotated %+v, %v", r, err)
	}
	x := index(t, s)
	for name, text := range map[string]string{"old": secret.Reveal(), "new": next.Reveal()} {
		if _, err := x.Lookup(text, time.Now()); err != nil {
			t.Errorf("%s secret within the grace: %v", name, err)
		}
	}
	if _, err := x.Lookup(secret.Reveal(), r.GraceUntil.Add(time.Second)); !errors.Is(err, tenants.ErrKeyExpired) {
		t.Errorf("old secret after the grace: %v", err)
	}

	if _, err := s.RevokeKey(t.Context(), tenant(t, s, "other").ID, k.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("revoked by another tenant: %v", err)
	}
	if _, err := s.RevokeKey(t.Context(), a.ID, k.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := index(t, s).Lookup(next.Reveal(), time.Now()); !errors.Is(err, tenants.ErrKeyRevoked) {
		t.Errorf("revoked: %v", err)
	}
	if _, _, err := s.RotateKey(t.Context(), "", k.ID, 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("a revoked key was rotated: %v", err)
	}
}

func TestTenantStates(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	_, secret, err := s.CreateKey(t.Context(), NewKey{TenantID: a.ID})
	if err != nil {
		t.Fatal(err)
	}
	suspended, weight := tenants.Suspended, 2.5
	got, err := s.UpdateTenant(t.Context(), a.ID, TenantChange{State: &suspended, Weight: &weight})
	if err != nil || got.State != suspended || got.Weight != weight || got.Name != "acme" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := index(t, s).Lookup(secret.Reveal(), time.Now()); !errors.Is(err, tenants.ErrTenantSuspended) {
		t.Errorf("got %v", err)
	}
	if _, err := s.CreateTenant(t.Context(), NewTenant{Name: "acme"}); !errors.Is(err, ErrExists) {
		t.Errorf("same name: %v", err)
	}
	if _, err := s.UpdateTenant(t.Context(), "nonsense", TenantChange{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such tenant: %v", err)
	}
}

func TestBadValuesNameTheField(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	past, zero := time.Now().Add(-time.Minute), 0.0
	bad := tenants.State("gone")
	create := func(n NewKey) error { _, _, err := s.CreateKey(t.Context(), n); return err }
	for want, err := range map[string]error{
		"name":          second(s.CreateTenant(t.Context(), NewTenant{Name: " "})),
		"weight":        second(s.CreateTenant(t.Context(), NewTenant{Name: "x", Weight: &zero})),
		"state":         second(s.UpdateTenant(t.Context(), a.ID, TenantChange{State: &bad})),
		"tenant_id":     create(NewKey{TenantID: "x"}),
		"expires_at":    create(NewKey{TenantID: a.ID, ExpiresAt: &past}),
		"scopes":        create(NewKey{TenantID: a.ID, Scopes: []string{"a b"}}),
		"models":        create(NewKey{TenantID: a.ID, Models: make([]string, 65)}),
		"classes":       create(NewKey{TenantID: a.ID, Classes: []string{strings.Repeat("x", 129)}}),
		"grace_seconds": third(s.RotateKey(t.Context(), "", "abcd", -1)),
		"ttl_seconds":   third(s.CreateJoinToken(t.Context(), NewJoinToken{TenantID: a.ID, TTLSeconds: new(int64)}, tenants.Pin{})),
	} {
		var fe *tenants.FieldError
		if !errors.As(err, &fe) || fe.Field != want {
			t.Errorf("want a complaint about %s, got %v", want, err)
		}
	}
	if err := create(NewKey{TenantID: "0190c9a4-7f7e-7000-8000-00000000000a"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown tenant: %v", err)
	}
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

func TestPagesAreCompleteAndScoped(t *testing.T) {
	s := open(t)
	a, b := tenant(t, s, "a"), tenant(t, s, "b")
	want := map[string]bool{}
	for i := range 7 {
		k, _, err := s.CreateKey(t.Context(), NewKey{TenantID: a.ID, Name: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		want[k.ID] = true
		if _, _, err := s.CreateKey(t.Context(), NewKey{TenantID: b.ID}); err != nil {
			t.Fatal(err)
		}
	}
	after := ""
	for range 4 {
		keys, err := s.Keys(t.Context(), a.ID, Page{After: after, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			if !want[k.ID] {
				t.Errorf("key %s twice or another tenant's", k.ID)
			}
			delete(want, k.ID)
			after = k.ID
		}
	}
	if len(want) > 0 {
		t.Errorf("%d keys are missing", len(want))
	}
	if ts, err := s.Tenants(t.Context(), "", Page{Limit: 1}); err != nil || len(ts) != 1 || ts[0].ID != a.ID {
		t.Errorf("tenants %v, %v", ts, err)
	}
	if ts, err := s.Tenants(t.Context(), b.ID, Page{}); err != nil || len(ts) != 1 || ts[0].Name != "b" {
		t.Errorf("one tenant: %v, %v", ts, err)
	}
}

func TestFirstAdminTokenIsMadeOnce(t *testing.T) {
	s := open(t)
	boom := errors.New("disk full")
	if made, err := s.FirstAdminToken(t.Context(), func(tenants.AdminToken) error { return boom }); made || !errors.Is(err, boom) {
		t.Fatalf("got %v, %v", made, err)
	}
	var made atomic.Int32
	var kept tenants.AdminToken
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ok, err := s.FirstAdminToken(t.Context(), func(tok tenants.AdminToken) error { kept = tok; return nil })
			if err != nil {
				t.Error(err)
			}
			if ok {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Fatalf("made %d times", made.Load())
	}
	got, err := s.CheckAdminToken(t.Context(), kept)
	if err != nil || got.Role != PlatformAdmin || got.TenantID != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	kept.Secret = tenants.NewSecret("wrong")
	if _, err := s.CheckAdminToken(t.Context(), kept); !errors.Is(err, ErrAdminToken) {
		t.Errorf("wrong secret: %v", err)
	}
}

func TestAdminTokensOfTenants(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	_, tok, err := s.CreateAdminToken(t.Context(), NewAdminToken{Role: TenantAdmin, TenantID: a.ID})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.CheckAdminToken(t.Context(), tok); err != nil || got.TenantID != a.ID || got.Role != TenantAdmin {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := s.db.Exec(t.Context(), `update weir.admin_tokens set expires_at = now() - interval '1 minute' where id = $1`, tok.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CheckAdminToken(t.Context(), tok); !errors.Is(err, ErrAdminToken) {
		t.Errorf("expired: %v", err)
	}
	past := time.Now().Add(-time.Minute)
	for _, bad := range []NewAdminToken{{Role: TenantAdmin}, {Role: PlatformAdmin, TenantID: a.ID}, {Role: "root"}, {Role: Viewer, ExpiresAt: &past}} {
		if _, _, err := s.CreateAdminToken(t.Context(), bad); err == nil {
			t.Errorf("made %+v", bad)
		}
	}
}

func TestAdminTokenRotation(t *testing.T) {
	s := open(t)
	a, b := tenant(t, s, "acme"), tenant(t, s, "other")
	_, old, err := s.CreateAdminToken(t.Context(), NewAdminToken{Role: TenantAdmin, TenantID: a.ID})
	if err != nil {
		t.Fatal(err)
	}
	rotated, fresh, err := s.RotateAdminToken(t.Context(), a.ID, old.ID, time.Hour)
	if err != nil || rotated.RotatedAt == nil || rotated.GraceUntil == nil || fresh.ID != old.ID {
		t.Fatalf("rotated %+v, %v", rotated, err)
	}
	valid := func(tok tenants.AdminToken) bool {
		_, err := s.CheckAdminToken(t.Context(), tok)
		if err != nil && !errors.Is(err, ErrAdminToken) {
			t.Error(err)
		}
		return err == nil
	}
	if !valid(old) || !valid(fresh) {
		t.Error("a secret is refused in the grace")
	}
	if _, err := s.db.Exec(t.Context(), `update weir.admin_tokens set prev_not_after = now() - interval '1 second' where id = $1`, old.ID); err != nil {
		t.Fatal(err)
	}
	if valid(old) || !valid(fresh) {
		t.Error("after the grace only the new secret is good")
	}
	for name, rotate := range map[string]func() (AdminToken, tenants.AdminToken, error){
		"of another tenant": func() (AdminToken, tenants.AdminToken, error) {
			return s.RotateAdminToken(t.Context(), b.ID, old.ID, 0)
		},
		"unknown": func() (AdminToken, tenants.AdminToken, error) {
			return s.RotateAdminToken(t.Context(), "", "abcdefgh", 0)
		},
		"no id": func() (AdminToken, tenants.AdminToken, error) { return s.RotateAdminToken(t.Context(), "", "A", 0) },
		"too long grace": func() (AdminToken, tenants.AdminToken, error) {
			return s.RotateAdminToken(t.Context(), "", old.ID, MaxGrace+1)
		},
	} {
		if _, _, err := rotate(); err == nil {
			t.Errorf("%s: rotated", name)
		}
	}
	if _, _, err := s.RotateAdminToken(t.Context(), "", old.ID, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RevokeAdminToken(t.Context(), "", old.ID); err != nil {
		t.Fatal(err)
	}
	if valid(fresh) {
		t.Error("a revoked token is good in its grace")
	}
	if _, _, err := s.RotateAdminToken(t.Context(), "", old.ID, 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("a revoked token was rotated: %v", err)
	}
}

func TestIdempotencyClaims(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	c := Claim{TenantID: a.ID, KeyID: "abcd", Key: "order-1", Body: [32]byte{1}, Node: "n1", Life: time.Minute}
	var mine atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			got, err := s.ClaimIdempotencyKey(t.Context(), c)
			if err != nil || !got.SameBody || got.Node != "n1" {
				t.Errorf("got %+v, %v", got, err)
			}
			if got.Mine {
				mine.Add(1)
			}
		})
	}
	wg.Wait()
	if mine.Load() != 1 {
		t.Fatalf("%d claims won", mine.Load())
	}
	other := c
	other.Body, other.Node = [32]byte{2}, "n2"
	if got, err := s.ClaimIdempotencyKey(t.Context(), other); err != nil || got.Mine || got.SameBody || got.Node != "n1" {
		t.Errorf("another body: %+v, %v", got, err)
	}
	if err := s.DropClaim(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.ClaimIdempotencyKey(t.Context(), other); got.Mine {
		t.Error("a stranger freed the claim")
	}
	if err := s.DropClaim(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	other.Life = time.Nanosecond
	if got, err := s.ClaimIdempotencyKey(t.Context(), other); err != nil || !got.Mine {
		t.Errorf("freed claim: %+v, %v", got, err)
	}
	if got, err := s.ClaimIdempotencyKey(t.Context(), c); err != nil || !got.Mine {
		t.Errorf("expired claim: %+v, %v", got, err)
	}
	if err := s.SweepClaims(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSeenAndUsedAreNoConfiguration(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	k, _, err := s.CreateKey(t.Context(), NewKey{TenantID: a.ID})
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.ConfigVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	if err := errors.Join(s.KeysUsed(t.Context(), map[string]time.Time{k.ID: now}), s.Seen(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	if after, err := s.ConfigVersion(t.Context()); err != nil || after != before {
		t.Errorf("version %d, then %d, %v", before, after, err)
	}
	keys, err := s.Keys(t.Context(), a.ID, Page{})
	if err != nil || keys[0].LastUsedAt == nil || !keys[0].LastUsedAt.Equal(now) {
		t.Errorf("got %+v, %v", keys, err)
	}
}

func TestChangesAreHinted(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	hints, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- s.WaitForChange(ctx, func() { hints <- struct{}{} }) }()
	deadline := time.After(time.Minute)
	for i, hinted := 0, false; !hinted; i++ { // until the listener is connected
		tenant(t, s, fmt.Sprint("t", i))
		select {
		case <-hints:
			hinted = true
		case <-deadline:
			t.Fatal("no hint")
		case <-time.After(50 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOpenKeepsThePassword(t *testing.T) {
	if _, err := Open("postgres://u:hunter2@[bad/x"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	s, err := Open("postgres://u:hunter2@127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.ConfigVersion(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}
