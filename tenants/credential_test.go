package tenants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestCredentialsRoundTrip(t *testing.T) {
	key, err := MintKey()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseKey(key.Reveal()); err != nil || got.ID != key.ID || !HashSecret(key.Secret).Matches(got.Secret) {
		t.Errorf("ParseKey(%v) = %v, %v", key, got, err)
	}
	rotated, err := MintKeyFor(key.ID)
	if err != nil || rotated.ID != key.ID || HashSecret(key.Secret).Matches(rotated.Secret) {
		t.Errorf("MintKeyFor: %v, %v: want the same id and another secret", rotated, err)
	}
	tok, err := MintAdminToken()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseAdminToken(tok.Reveal()); err != nil || got.Reveal() != tok.Reveal() {
		t.Errorf("ParseAdminToken(%v) = %v, %v", tok, got, err)
	}
	pin := PinSPKI([]byte("a public key"))
	join, err := MintJoinToken(pin)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseJoinToken(join.Reveal())
	if err != nil || got.Reveal() != join.Reveal() || !got.Pin.Matches([]byte("a public key")) {
		t.Errorf("ParseJoinToken(%v) = %v, %v", join, got, err)
	}
	if got.Pin.Matches([]byte("another key")) {
		t.Error("pin matches another key")
	}
}

func TestMalformedCredentials(t *testing.T) {
	sec := strings.Repeat("a", minSec)
	pin := PinSPKI(nil).String()
	bad := []string{
		"", "wk", "wk_", "wk__", "wk_abcd", "wk_abcd_", "wk_abc_" + sec, "wk_abcd_" + sec[1:],
		"wa_abcd_" + sec, "WK_abcd_" + sec, "wk_ABCD_" + sec, "wk_abcd_" + sec + "_", " wk_abcd_" + sec,
		"wk_abcd_" + sec + "\n", "wk_abcd_" + strings.Repeat("a", maxSecret+1), "wk_abcd_" + sec + "é",
		"wk_" + strings.Repeat("a", maxID+1) + "_" + sec, strings.Repeat("wk_", 1<<16),
	}
	for _, s := range bad {
		if _, err := ParseKey(s); !errors.Is(err, ErrMalformed) {
			t.Errorf("ParseKey(%.40q): %v, want ErrMalformed", s, err)
		}
	}
	bad = []string{
		"", "wj1.", "wj1.abcd." + sec, "wj1.abcd." + sec + ".", "wj1.abcd." + sec + "." + pin[1:],
		"wj1.abcd." + sec + "." + pin + "=", "wj1.abcd." + sec + "." + pin + ".x", "wj2.abcd." + sec + "." + pin,
		"wj1.abcd." + sec + "." + pin[:42] + "9", // the last character has bits that stand for nothing
	}
	for _, s := range bad {
		if _, err := ParseJoinToken(s); !errors.Is(err, ErrMalformed) {
			t.Errorf("ParseJoinToken(%.40q): %v, want ErrMalformed", s, err)
		}
	}
	if _, err := MintKeyFor("../x"); !errors.Is(err, ErrMalformed) {
		t.Errorf("MintKeyFor with a bad id: %v", err)
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	key, _ := MintKey()
	tok, _ := MintAdminToken()
	join, _ := MintJoinToken(PinSPKI(nil))
	_, parseErr := ParseKey(key.Reveal() + "!")
	type holder struct {
		hidden Key
		Shown  *AdminToken
		List   []JoinToken
		Map    map[string]Secret
	}
	v := holder{key, &tok, []JoinToken{join}, map[string]Secret{"s": key.Secret}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, a := range []any{v, key, &key, tok, join, key.Secret, &key.Secret, parseErr} {
			fmt.Fprintf(&out, verb+"\n", a)
		}
	}
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("x", "a", v, "b", key, "c", tok, "d", join, "e", key.Secret)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "a", v, "b", key, "e", &key.Secret)
	if err := json.NewEncoder(&out).Encode([]any{v, key, tok, join}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Secret{key.Secret, tok.Secret, join.Secret} {
		for _, form := range []string{s.Reveal(), fmt.Sprintf("%x", s.Reveal())} {
			if strings.Contains(out.String(), form) {
				t.Errorf("a secret was printed as %q", form)
			}
		}
	}
	if !strings.Contains(out.String(), key.ID) {
		t.Error("the public id should print")
	}
}

func TestHashText(t *testing.T) {
	h := HashSecret(NewSecret("abc"))
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // FIPS 180-2, B.1
	if h.String() != want {
		t.Errorf("hash = %s, want %s", h, want)
	}
	var back Hash
	if err := back.UnmarshalText([]byte(want)); err != nil || back != h {
		t.Errorf("UnmarshalText = %v, %v", back, err)
	}
	for _, bad := range []string{"", want[1:], want + "00", "zz" + want[2:]} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("UnmarshalText(%q) succeeded", bad)
		}
	}
}

func FuzzParseCredentials(f *testing.F) {
	key, _ := MintKey()
	join, _ := MintJoinToken(PinSPKI(nil))
	for _, s := range []string{"", key.Reveal(), join.Reveal(), "wa_abcd_x", "wk_\xff_"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := ParseKey(s); err == nil && k.Reveal() != s {
			t.Errorf("key %q reads back as %q", s, k.Reveal())
		}
		if k, err := ParseAdminToken(s); err == nil && k.Reveal() != s {
			t.Errorf("token %q reads back as %q", s, k.Reveal())
		}
		if k, err := ParseJoinToken(s); err == nil && k.Reveal() != s {
			t.Errorf("join token %q reads back as %q", s, k.Reveal())
		}
	})
}
