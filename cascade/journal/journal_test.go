package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/testproc"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

func decision(id string) Record {
	c := .7
	return Record{Kind: KindDecision, Request: id, Cell: "c", Tier: "edge", Reason: "confident", Conf: &c, Features: []float64{1, 2}, Propensity: .02}
}

func open(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	j, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func ids(t *testing.T, j *Journal, after uint64) string {
	t.Helper()
	var out []string
	if err := j.Replay(after, func(r Record) error { out = append(out, r.Request); return nil }); err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func TestAppendAndReopen(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	for _, id := range []string{"a", "b"} {
		if _, err := j.Append(decision(id)); err != nil {
			t.Fatal(err)
		}
	}
	one := 1.0
	j.Append(Record{Kind: KindLabel, Request: "a", Edge: &one, LabelKind: "feedback"})
	j.Close()
	j = open(t, dir, Options{})
	if seq, err := j.Append(decision("c")); err != nil || seq != 4 {
		t.Errorf("after reopening the number is %d, %v", seq, err)
	}
	if got := ids(t, j, 0); got != "a b a c" {
		t.Errorf("log holds %q", got)
	}
	if got := ids(t, j, 2); got != "a c" {
		t.Errorf("after 2: %q", got)
	}
}

// The latest label and the latest word of somebody are found beside the decision,
// each, whichever of the two files they are in, and after a restart as before.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{MaxBytes: 3000})
	put := func(r Record) {
		if _, err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	check := func(request string, want ...float64) {
		t.Helper()
		byPlace, ok, err := j.Find(request)
		byScan, found, errScan := Find(dir, request)
		if !reflect.DeepEqual(byPlace, byScan) || ok != found || err != nil || errScan != nil {
			t.Fatalf("%s: by its place %+v %v %v, in all %+v %v %v", request, byPlace, ok, err, byScan, found, errScan)
		}
		if ok != (want != nil) {
			t.Fatalf("%s: found %v", request, ok)
		}
		for i, r := range []*Record{byPlace.Label, byPlace.Feedback} {
			if ok && ((r != nil) != (want[i] >= 0) || r != nil && *r.Edge != want[i]) {
				t.Errorf("%s: labels %+v, want %v", request, byPlace, want)
			}
		}
	}
	label := func(request, kind string, v float64) Record {
		return Record{Kind: KindLabel, Request: request, LabelKind: kind, Edge: &v}
	}
	put(decision("a"))
	put(decision("b"))
	check("a", -1, -1)
	put(label("a", LabelAgreement, .5))
	put(label("a", LabelFeedback, .25))
	put(label("b", LabelFeedback, 0))
	check("a", .5, .25)
	check("b", -1, 0)
	for i := 0; j.old.f == nil; i++ {
		put(decision(fmt.Sprint(i)))
	}
	put(label("a", LabelFeedback, 1))
	for range 2 {
		check("a", .5, 1)
		check("0", -1, -1)
		check("z")
		j.Close()
		j = open(t, dir, Options{MaxBytes: 3000})
	}
	for i := range 60 { // both files are new ones
		put(decision(fmt.Sprint("later", i)))
	}
	check("a")
	check("later59", -1, -1)
}

func TestRejectedRecords(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	long := decision("a")
	long.Cell = strings.Repeat("x", maxRecord)
	for _, r := range []Record{{}, {Kind: KindDecision, Reason: "because"}, long} {
		if _, err := j.Append(r); !errors.Is(err, ErrRecord) {
			t.Errorf("%.40v: %v", r, err)
		}
	}
	if j.Seq() != 0 {
		t.Error("a rejected record took a number")
	}
}

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{MaxBytes: 2000})
	for i := range 60 {
		if _, err := j.Append(decision(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Fields(ids(t, j, 0))
	if len(got) == 0 || len(got) >= 60 || got[len(got)-1] != "59" {
		t.Errorf("after rotation the log holds %v", got)
	}
	for _, name := range []string{logName, oldName} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() > 2000 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	j.Close()
	if j = open(t, dir, Options{}); j.Seq() != 60 {
		t.Errorf("numbering goes on after %d", j.Seq())
	}
}

// Whatever a crash leaves of the end, all whole records before it are kept and
// the log can be appended to.
func TestTornEnd(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, Options{})
	for i := range 5 {
		j.Append(decision(fmt.Sprint(i)))
	}
	j.Close()
	path := filepath.Join(dir, logName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
		data := append([]byte(nil), whole[:cut]...)
		if cut > 0 && rapid.Bool().Draw(t, "flip") {
			data[rapid.IntRange(0, cut-1).Draw(t, "at")] ^= 0x40
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if _, err := j.Append(decision("new")); err != nil {
			t.Fatal(err)
		}
		next, last := 0, ""
		if err := j.Replay(0, func(r Record) error {
			if last = r.Request; last != "new" && last != fmt.Sprint(next) {
				return fmt.Errorf("record %q, want %d", last, next)
			}
			next++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if last != "new" {
			t.Fatalf("last record is %q", last)
		}
	})
}

func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	if s, seq, err := ReadSnapshot(dir); s != nil || seq != 0 || err != nil {
		t.Errorf("without a snapshot: %v %d %v", s, seq, err)
	}
	write := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	if err := WriteSnapshot(dir, 7, write("first")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := WriteSnapshot(dir, 8, func(w io.Writer) error { io.WriteString(w, "ha"); return broken }); !errors.Is(err, broken) {
		t.Errorf("failing writer: %v", err)
	}
	if s, seq, err := ReadSnapshot(dir); string(s) != "first" || seq != 7 || err != nil {
		t.Errorf("snapshot %q %d %v", s, seq, err)
	}
	path := filepath.Join(dir, snapshotName)
	data, _ := os.ReadFile(path)
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= 1
		os.WriteFile(path, bad, 0o600)
		if _, _, err := ReadSnapshot(dir); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
	}
	if entries, _ := filepath.Glob(filepath.Join(dir, ".state-*")); len(entries) > 0 {
		t.Errorf("temporary files are left: %v", entries)
	}
}

func TestAsync(t *testing.T) {
	j := open(t, t.TempDir(), Options{})
	entered, release := make(chan struct{}), make(chan struct{})
	var seen []uint64
	a := NewAsync(j, 1, slog.New(slog.DiscardHandler), func(r Record) {
		if seen = append(seen, r.Seq); len(seen) == 1 {
			close(entered)
			<-release
		}
	})
	a.Log(decision("a"))
	<-entered // the goroutine is busy, the queue empty
	if !a.Log(decision("b")) {
		t.Error("an empty queue has no room")
	}
	if a.Log(decision("c")) || a.Dropped() != 1 {
		t.Errorf("a full queue takes more; %d dropped", a.Dropped())
	}
	close(release)
	a.Close()
	a.Close()
	if a.Log(decision("d")) {
		t.Error("a closed writer takes records")
	}
	if got := ids(t, j, 0); got != "a b" || len(seen) != 2 {
		t.Errorf("log holds %q, learner saw %v", got, seen)
	}
}

func FuzzReadRecord(f *testing.F) {
	r := decision("a")
	good, err := encode(nil, &r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:10])
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		var buf []byte
		for {
			_, n, b, err := readRecord(in, buf)
			if err != nil {
				return
			}
			if n <= 8 {
				t.Fatalf("a record of %d bytes", n)
			}
			buf = b
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	j, err := Open(b.TempDir(), Options{SyncEvery: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := j.Append(decision("a")); err != nil {
			b.Fatal(err)
		}
	}
}
