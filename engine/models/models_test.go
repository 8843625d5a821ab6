package models_test

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/models"
)

func TestPathWritesOnceAndRepairs(t *testing.T) {
	for _, name := range models.Names() {
		dir := t.TempDir()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := models.Path(name, dir); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		path, err := models.Path(name, dir)
		if err != nil {
			t.Fatal(err)
		}
		want, err := models.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		first, _ := os.Stat(path)
		if err := os.WriteFile(path, want[:len(want)-1], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := models.Path(name, dir); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: a cut file was not repaired: %v", name, err)
		}
		if first.Size() != int64(len(want)) {
			t.Errorf("%s: %d bytes, want %d", name, first.Size(), len(want))
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: %d files left in the folder, want 1", name, len(left))
		}
	}
	if _, err := models.Path("hub-none", t.TempDir()); !errors.Is(err, models.ErrUnknown) {
		t.Errorf("unknown name: %v", err)
	}
}

func TestPathFailsClearly(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := models.Path("hub-edge", file); err == nil || !strings.Contains(err.Error(), "unpack model hub-edge") {
		t.Errorf("cache folder that is a file: %v", err)
	}
}

func TestPrompt(t *testing.T) {
	user := func(s string) engine.Message { return engine.Message{Role: "user", Content: s} }
	bot := func(s string) engine.Message { return engine.Message{Role: "assistant", Content: s} }
	cases := []struct {
		name     string
		messages []engine.Message
		cont     bool
		want     string
		err      error
	}{
		{"plain", []engine.Message{user("turn on the kitchen light")}, false, "U: turn on the kitchen light\nA: ", nil},
		{"case and mark", []engine.Message{user(" What's 3 plus 4?? \n")}, false, "U: what's 3 plus 4\nA: ", nil},
		{"last user turn", []engine.Message{user("a"), bot("b"), user("C.")}, false, "U: c\nA: ", nil},
		{"assistant last", []engine.Message{user("a"), bot("b")}, false, "U: a\nA: ", nil},
		{"continue", []engine.Message{user("a"), bot("Par")}, true, "U: a\nA: Par", nil},
		{"system only", []engine.Message{{Role: "system", Content: "be nice"}}, false, "", models.ErrNoUserMessage},
		{"only marks", []engine.Message{user("?!")}, false, "", models.ErrNoUserMessage},
		{"none", nil, true, "", models.ErrNoUserMessage},
	}
	for _, c := range cases {
		got, err := models.Prompt(c.messages, c.cont)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
		}
	}
}

// The evaluation sends the sets' prompts through Prompt: it must not change
// them, or the measured accuracy would be of other prompts.
func TestNormaliseKeepsTrainingForm(t *testing.T) {
	examples, err := models.Calibration()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range examples {
		if got := models.Normalise(e.Prompt); got != e.Prompt {
			t.Errorf("Normalise(%q) = %q", e.Prompt, got)
		}
	}
}

func FuzzParseExamples(f *testing.F) {
	f.Add([]byte(`{"task":"T1","sub":"cmd","prompt":"p","answer":"a"}`))
	f.Add([]byte("{}\n[]"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if out, err := models.ParseExamples(data); err == nil && len(out) == 0 {
			t.Error("no example and no error")
		}
	})
}
