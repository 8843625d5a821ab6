package tenants

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestAnswerID(t *testing.T) {
	attempt := uuid.Must(uuid.NewV7())
	id := AnswerID(attempt, []byte("operation"), []byte("key"), []byte("body"))
	if again := AnswerID(attempt, []byte("operation"), []byte("key"), []byte("body")); id != again {
		t.Errorf("%s, then %s", id, again)
	}
	u := uuid.MustParse(id)
	if !isUUID(id) || u.Version() != 8 || u.Variant() != uuid.RFC4122 || !isAnswerID(id) || isAnswerID(attempt.String()) {
		t.Errorf("%s is version %d, %s", id, u.Version(), u.Variant())
	}
	ms, ok := Minted(u)
	want, _ := Minted(attempt)
	if !ok || ms != want || time.Since(time.UnixMilli(ms)).Abs() > time.Minute {
		t.Errorf("minted at %d, the attempt at %d", ms, want)
	}
	if _, ok := Minted(uuid.New()); ok {
		t.Error("a random UUID has a time")
	}
	seen := map[string]bool{id: true}
	for _, other := range []string{
		AnswerID(uuid.Must(uuid.NewV7()), []byte("operation"), []byte("key"), []byte("body")),
		AnswerID(attempt, []byte("operatiom"), []byte("key"), []byte("body")),
		AnswerID(attempt, []byte("operation"), []byte(""), []byte("body")),
		AnswerID(attempt, []byte("operation"), []byte("key"), []byte("bodz")),
		AnswerID(attempt, []byte("operationk"), []byte("ey"), []byte("body")),
		AnswerID(attempt, []byte("operation"), []byte("key")),
	} {
		if seen[other] {
			t.Errorf("two requests have the id %s", other)
		}
		seen[other] = true
	}
}

// TestDeviceCannotTakeAnAnswersPlace: a device knows all that the id of its
// answer follows from, and may not report a row of its own under it.
func TestDeviceCannotTakeAnAnswersPlace(t *testing.T) {
	attempt := uuid.Must(uuid.NewV7())
	for id, ok := range map[string]bool{attempt.String(): true, AnswerID(attempt, []byte("body")): false} {
		body := `{"rows":[{"attempt_id":"` + id + `","operation_id":"` + uuid.Must(uuid.NewV7()).String() + `","tier":"edge","model":"m","outcome":"ok",
			"usage_source":"counted","input_tokens":0,"cached_tokens":0,"output_tokens":0,"reasoning_tokens":0,"started_at":"` + time.Now().UTC().Format(time.RFC3339) + `","total_us":1}]}`
		rows, rejected, err := DecodeUsage([]byte(body), "t", "d", time.Now())
		if err != nil || (len(rows) == 1) != ok || !ok && (len(rejected) != 1 || rejected[0].Field != "attempt_id") {
			t.Errorf("%s: %d rows, rejected %+v, %v", id, len(rows), rejected, err)
		}
	}
}
