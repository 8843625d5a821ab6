package store

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
)

func workerToken(t *testing.T, s *Store, uses int) tenants.JoinToken {
	t.Helper()
	_, tok, err := s.CreateWorkerToken(t.Context(), NewWorkerToken{Uses: &uses}, tenants.Pin{1})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func admit(t *testing.T, s *Store, tok tenants.JoinToken, name string, key byte) error {
	t.Helper()
	return s.AdmitWorker(t.Context(), WorkerJoin{Token: tok, Name: name, Key: tenants.Hash{key}, CertLife: time.Hour}, func() error { return nil })
}

func register(t *testing.T, s *Store, name string, key byte, epoch string) error {
	t.Helper()
	return replace(t, s, name, key, epoch, "")
}

func replace(t *testing.T, s *Store, name string, key byte, epoch, old string) error {
	t.Helper()
	return s.RegisterInstance(t.Context(), Registration{Name: name, Key: tenants.Hash{key}, URL: "https://h:1", Role: "decode", Model: "m", Epoch: epoch, Replaces: &old})
}

func members(t *testing.T, s *Store) []Membership {
	t.Helper()
	m, err := s.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestTokenLetsInAsManyAsItSays: at the same time, too.
func TestTokenLetsInAsManyAsItSays(t *testing.T) {
	s := open(t)
	tok := workerToken(t, s, 5)
	errs := make([]error, 40)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = admit(t, s, tok, string(rune('a'+i%26))+string(rune('a'+i/26)), byte(i)) })
	}
	wg.Wait()
	in := 0
	for _, err := range errs {
		if err == nil {
			in++
		} else if !errors.Is(err, ErrTokenUsed) {
			t.Errorf("got %v", err)
		}
	}
	got, err := s.WorkerTokenByID(t.Context(), tok.ID)
	if in != 5 || err != nil || got.Used != 5 || got.LastUsedAt == nil {
		t.Errorf("%d came in, token %+v, %v", in, got, err)
	}
	if all, err := s.Instances(t.Context(), Page{}); err != nil || len(all) != 5 {
		t.Errorf("%d instances, %v", len(all), err)
	}
}

func TestWorkerTokensThatDoNotOpen(t *testing.T) {
	s := open(t)
	good := workerToken(t, s, 1)
	guess := good
	guess.Secret = tenants.NewSecret("0123456789012345678901234567890123456789012")
	if err := admit(t, s, guess, "w", 1); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("wrong secret: %v", err)
	}
	device := joinToken(t, s, tenant(t, s, "acme").ID)
	if err := admit(t, s, device, "w", 1); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("a device's token: %v", err)
	}
	failed := errors.New("no certificate")
	if err := s.AdmitWorker(t.Context(), WorkerJoin{Token: good, Name: "w", CertLife: time.Hour}, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("sign failed: %v", err)
	}
	if err := admit(t, s, good, "w", 1); err != nil {
		t.Errorf("the token is unused: %v", err)
	}
	if err := admit(t, s, good, "w", 1); err != nil {
		t.Errorf("the same key again, its answer was lost: %v", err)
	}
	if err := admit(t, s, good, "other", 2); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("used up: %v", err)
	}
	ended := workerToken(t, s, 9)
	if _, err := s.RevokeWorkerToken(t.Context(), ended.ID); err != nil {
		t.Fatal(err)
	}
	if err := admit(t, s, ended, "x", 3); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("revoked: %v", err)
	}
	for _, n := range []NewWorkerToken{{Uses: new(int)}, {TTLSeconds: new(int64)}, {Name: "a\nb"}} {
		var field *tenants.FieldError
		if _, _, err := s.CreateWorkerToken(t.Context(), n, tenants.Pin{}); !errors.As(err, &field) {
			t.Errorf("%+v: %v", n, err)
		}
	}
}

// TestNameBelongsToOneKey: a living worker keeps its name, also over a restart;
// one that is silent gives it up, and its old key then opens nothing.
func TestNameBelongsToOneKey(t *testing.T) {
	s := open(t)
	tok := workerToken(t, s, 9)
	if err := errors.Join(admit(t, s, tok, "w", 1), register(t, s, "w", 1, "e1")); err != nil {
		t.Fatal(err)
	}
	if err := admit(t, s, tok, "w", 2); !errors.Is(err, ErrNameTaken) {
		t.Errorf("of a living worker: %v", err)
	}
	exec(t, s, `update weir.instances set joined_at = joined_at - $1::interval, seen_at = seen_at - $1::interval`, NameKept+time.Second)
	if m := members(t, s); len(m) != 1 || m[0].Silent < NameKept {
		t.Errorf("a silent member: %+v", m)
	}
	if err := admit(t, s, tok, "w", 2); err != nil {
		t.Errorf("of a silent one: %v", err)
	}
	if m := members(t, s); len(m) != 0 {
		t.Errorf("what the old worker had told is still there: %+v", m)
	}
	if err := register(t, s, "w", 1, "e9"); !errors.Is(err, ErrNotMember) {
		t.Errorf("the old key registers: %v", err)
	}
	if err := s.InstanceRenewed(t.Context(), "w", tenants.Hash{1}, time.Hour); !errors.Is(err, ErrNotMember) {
		t.Errorf("the old key renews: %v", err)
	}
	if err := errors.Join(register(t, s, "w", 2, "e2"), s.InstanceLeft(t.Context(), "w", tenants.Hash{2}, "e2")); err != nil {
		t.Fatal(err)
	}
	if err := admit(t, s, tok, "w", 3); !errors.Is(err, ErrNameTaken) {
		t.Errorf("of one that has just left: %v", err)
	}
	if err := errors.Join(register(t, s, "w", 2, "e3"), s.InstanceLeft(t.Context(), "w", tenants.Hash{2}, "e3")); err != nil {
		t.Errorf("it comes back: %v", err)
	}
	exec(t, s, `update weir.instances set joined_at = joined_at - $1::interval, seen_at = seen_at - $1::interval`, NameKept+time.Second)
	if err := admit(t, s, tok, "w", 3); err != nil {
		t.Errorf("of one that left long ago: %v", err)
	}
}

// TestNewestProcessIsTheMember: the one that was replaced is told so.
func TestNewestProcessIsTheMember(t *testing.T) {
	s := open(t)
	if err := errors.Join(admit(t, s, workerToken(t, s, 1), "w", 1), register(t, s, "w", 1, "e1")); err != nil {
		t.Fatal(err)
	}
	held := func(err error, by string) {
		t.Helper()
		if e := (*HeldError)(nil); !errors.As(err, &e) || e.Epoch != by {
			t.Errorf("got %v, want that %s is the member", err, by)
		}
	}
	held(register(t, s, "w", 1, "e2"), "e1")
	if err := errors.Join(replace(t, s, "w", 1, "e2", "e1"), register(t, s, "w", 1, "e2")); err != nil { // the second time as if the answer was lost
		t.Fatal(err)
	}
	held(register(t, s, "w", 1, "e1"), "e2")
	held(replace(t, s, "w", 1, "e0", "e1"), "e2")
	old := Registration{Name: "w", Key: tenants.Hash{1}, URL: "https://h:1", Role: "decode", Model: "m", Epoch: "e3"} // names nobody
	if err := errors.Join(s.RegisterInstance(t.Context(), old), replace(t, s, "w", 1, "e2", "e3")); err != nil {
		t.Fatal(err)
	}
	seen := func(key byte, epoch string) error { return s.InstanceSeen(t.Context(), "w", tenants.Hash{key}, epoch) }
	if err := seen(1, "e2"); err != nil {
		t.Errorf("the newest: %v", err)
	}
	if err := seen(1, "e1"); !errors.Is(err, ErrReplaced) {
		t.Errorf("the one before: %v", err)
	}
	if err := s.InstanceLeft(t.Context(), "w", tenants.Hash{1}, "e1"); !errors.Is(err, ErrReplaced) {
		t.Errorf("it leaves: %v", err)
	}
	if m := members(t, s); len(m) != 1 || m[0].Epoch != "e2" || m[0].Silent > time.Minute {
		t.Errorf("members %+v", m)
	}
	if err := seen(7, "e2"); !errors.Is(err, ErrNotMember) {
		t.Errorf("another key: %v", err)
	}
	if err := s.InstanceLeft(t.Context(), "w", tenants.Hash{1}, "e2"); err != nil || len(members(t, s)) != 0 {
		t.Errorf("after it left: %+v, %v", members(t, s), err)
	}
	if err := register(t, s, "w", 1, "e3"); err != nil || len(members(t, s)) != 1 {
		t.Errorf("it comes back: %v", err)
	}
	if err := s.ForgetInstance(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	if err := seen(1, "e3"); !errors.Is(err, ErrNotMember) {
		t.Errorf("forgotten: %v", err)
	}
	if err := s.ForgetInstance(t.Context(), "w"); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgotten again: %v", err)
	}
}
