package spool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/tenants"
)

func TestOneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("second Open: %v, want ErrLocked", err)
	}
}

func TestBadOptionsAndRecords(t *testing.T) {
	for _, o := range []Options{{}, {Dir: "x", SegmentBytes: 8}, {Dir: "x", SegmentBytes: small + 1}, {Dir: "x", MaxBytes: 8 << 20}} {
		if _, err := Open(o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
	s := open(t, Options{Dir: t.TempDir()})
	for _, alter := range []func(*tenants.UsageRecord){
		func(r *tenants.UsageRecord) { r.AttemptID = "1" },
		func(r *tenants.UsageRecord) { r.OperationID = strings.Replace(r.OperationID, "0", "g", 1) },
		func(r *tenants.UsageRecord) { r.Model = strings.Repeat("m", 256) },
	} {
		r := record(1)
		alter(r)
		if err := s.Append(r); err == nil {
			t.Errorf("%+v accepted", r)
		}
	}
	if rows := drainAll(t, s); len(rows) != 0 {
		t.Errorf("%d rows of refused records", len(rows))
	}
}

func TestDamagedFilesAreSetAside(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	for i := range 3 {
		if err := s.Append(record(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Overwrite a part of the second row's payload, as a machine's crash may.
	path := segmentPath(dir, 1)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := appendRecord(nil, record(0))
	if err != nil {
		t.Fatal(err)
	}
	copy(b[headerSize+frameSize(len(payload))+40:], "????")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segmentPath(dir, 99), []byte("not a segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	rows := drainAll(t, s)
	if len(rows) != 2 || rows[1].AttemptID != record(2).AttemptID {
		t.Errorf("%d rows around the damaged one, want 2", len(rows))
	}
	if st := s.Stats(); st.Torn != 1 {
		t.Errorf("stats %+v, want one torn", st)
	}
	eventually(t, "the files set aside", func() bool {
		kept, _ := filepath.Glob(filepath.Join(dir, "*.kept"))
		return len(kept) == 2
	})
}

// A file that is cut short under its mapping faults like a full disk; the row
// goes to the next segment instead.
func TestFaultInTheMappingIsNoCrash(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	if err := s.Append(record(0)); err != nil {
		t.Fatal(err)
	}
	if s.segs[0].mem == nil {
		t.Skip("no mappings on this system")
	}
	if err := os.Truncate(segmentPath(dir, 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(record(1)); err != nil {
		t.Fatalf("append after the fault: %v", err)
	}
	rows := drainAll(t, s)
	if !slices.ContainsFunc(rows, func(r tenants.UsageRecord) bool { return r.AttemptID == record(1).AttemptID }) {
		t.Errorf("the row after the fault is not among %d", len(rows))
	}
}
