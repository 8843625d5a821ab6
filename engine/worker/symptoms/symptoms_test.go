package symptoms

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLosses(t *testing.T) {
	w := &Watch{}
	now := time.Unix(1e9, 0)
	for i := range mostLosses {
		if got := w.Look(now); got != "" {
			t.Fatalf("after %d losses: %q", i, got)
		}
		w.Lost(now)
		now = now.Add(time.Minute)
	}
	if got := w.Look(now); got != "its model was lost 3 times in 10m0s" {
		t.Errorf("%q", got)
	}
	if got := w.Look(now.Add(lossesIn)); got != "" || len(w.losses) != 0 {
		t.Errorf("long after: %q", got)
	}
}

func TestShortMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pressure")
	w := &Watch{stalls: 10, files: []string{file + ".absent", file}}
	look := func() string { return w.Look(time.Unix(1e9, 0)) }
	if got := look(); got != "" {
		t.Errorf("a machine that does not tell: %q", got)
	}
	const short = "memory is short: everything stood still for 12 % of a minute"
	for _, step := range []struct {
		percent float64
		want    string
	}{{0, ""}, {9.9, ""}, {12, short}, {50, short}, {5, short}, {3, ""}, {5, ""}} { // one symptom, one text
		content := fmt.Sprintf("some avg10=0.00 avg60=99.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=%.2f avg300=0.00 total=1\n", step.percent)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := look(); got != step.want {
			t.Errorf("%v %%: %q, want %q", step.percent, got, step.want)
		}
	}
	if w.stalls = 0; w.Look(time.Unix(1e9, 0)) != "" {
		t.Error("a symptom that nobody asks for")
	}
}

func TestThisMachine(t *testing.T) {
	if _, err := os.Stat(machinePressure); err != nil {
		t.Skip("this machine does not tell its pressure")
	}
	if share, ok := New(10).stalled(); !ok || share < 0 || share > 100 {
		t.Errorf("%v %v", share, ok)
	}
}

func TestGroupOf(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "/",
		"0::/\n":                            "/",
		"0::/system.slice/weir.service\n":   "/system.slice/weir.service",
		"9:memory:/old\n0::/user.slice/a b": "/user.slice/a b",
		"9:memory:/old\n":                   "/",
		"0::/../other\n":                    "/",
		"0::relative\n":                     "/",
	} {
		if got := groupOf([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzParsePressure(f *testing.F) {
	for _, s := range []string{"", "full avg60=1.5", "full avg60=NaN", "full avg60=1e9", "some avg60=2\nfull avg10=1 avg60=3 total=9", "full\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, ok := parsePressure(data); ok && !(n >= 0 && n <= 100) {
			t.Errorf("%v", n)
		}
	})
}
