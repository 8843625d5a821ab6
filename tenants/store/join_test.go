package store

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
)

func joinToken(t *testing.T, s *Store, tenantID string) tenants.JoinToken {
	t.Helper()
	_, tok, err := s.CreateJoinToken(t.Context(), NewJoinToken{TenantID: tenantID, Name: "kitchen"}, tenants.Pin{1})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func signed(Device) error { return nil }

func exec(t *testing.T, s *Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func TestOneOfManyJoinsWins(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	tok := joinToken(t, s, a.ID)
	const n = 200
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, errs[i] = s.ConsumeJoinToken(t.Context(), Join{Token: tok, Key: tenants.Hash{byte(i)}, CertLife: time.Hour}, signed)
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, ErrTokenUsed):
			t.Errorf("got %v", err)
		}
	}
	if won != 1 {
		t.Fatalf("%d joins won", won)
	}
	devs, err := s.Devices(t.Context(), a.ID, Page{})
	if err != nil || len(devs) != 1 || devs[0].Name != "kitchen" || devs[0].TenantID != a.ID {
		t.Errorf("devices %+v, %v", devs, err)
	}
	toks, err := s.JoinTokens(t.Context(), a.ID, Page{})
	if err != nil || len(toks) != 1 || toks[0].UsedAt == nil || *toks[0].DeviceID != devs[0].ID {
		t.Errorf("tokens %+v, %v", toks, err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	if err := s.Seen(t.Context(), map[string]time.Time{devs[0].ID: now}); err != nil {
		t.Fatal(err)
	}
	if devs, _ = s.Devices(t.Context(), "", Page{}); devs[0].LastSeenAt == nil || !devs[0].LastSeenAt.Equal(now) {
		t.Errorf("last seen %v", devs[0].LastSeenAt)
	}
}

func TestLostAnswerIsGivenAgain(t *testing.T) {
	s := open(t)
	tok := joinToken(t, s, tenant(t, s, "acme").ID)
	j := Join{Token: tok, Key: tenants.Hash{7}, CertLife: time.Hour}
	first, err := s.ConsumeJoinToken(t.Context(), j, signed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ConsumeJoinToken(t.Context(), j, signed); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("at once: %v", err)
	}
	exec(t, s, `update weir.join_tokens set used_at = used_at - interval '1 minute'`)
	again, err := s.ConsumeJoinToken(t.Context(), j, signed)
	if err != nil || again.ID != first.ID {
		t.Errorf("the same device later: %+v, %v", again, err)
	}
	j.Key = tenants.Hash{8}
	if _, err := s.ConsumeJoinToken(t.Context(), j, signed); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("another device later: %v", err)
	}
	exec(t, s, `update weir.devices set state = 'revoked'`)
	j.Key = tenants.Hash{7}
	if _, err := s.ConsumeJoinToken(t.Context(), j, signed); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("a revoked device: %v", err)
	}
}

func TestJoinRefusals(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "acme")
	tok := joinToken(t, s, a.ID)
	j := Join{Token: tok, Key: tenants.Hash{1}, CertLife: time.Hour}

	wrong, unknown := j, j
	wrong.Token.Secret = tenants.NewSecret("guess")
	unknown.Token.ID = "zzzz"
	for name, bad := range map[string]Join{"wrong secret": wrong, "unknown id": unknown} {
		if _, err := s.ConsumeJoinToken(t.Context(), bad, signed); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	boom := errors.New("bad request")
	if _, err := s.ConsumeJoinToken(t.Context(), j, func(Device) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("failed signature: %v", err)
	}
	exec(t, s, `update weir.tenants set state = 'suspended'`)
	if _, err := s.ConsumeJoinToken(t.Context(), j, signed); !errors.Is(err, tenants.ErrTenantSuspended) {
		t.Errorf("suspended tenant: %v", err)
	}
	exec(t, s, `update weir.tenants set state = 'active'`)
	exec(t, s, `update weir.join_tokens set expires_at = now()`)
	if _, err := s.ConsumeJoinToken(t.Context(), j, signed); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("expired: %v", err)
	}
	exec(t, s, `update weir.join_tokens set expires_at = now() + interval '1 hour'`)
	if _, err := s.ConsumeJoinToken(t.Context(), j, signed); err != nil {
		t.Errorf("none of the refusals used the token up, yet: %v", err)
	}
}
