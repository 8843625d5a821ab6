package spool

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// image is a segment in memory with n settlements.
func image(t testing.TB, n int) []byte {
	t.Helper()
	b := makeHeader(5)
	for i := range n {
		off := int64(len(b))
		sum, err := appendRecord(appendSumHead(nil, 5, off, kindSettlement), record(i))
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, frameOf(sum)...)
	}
	return append(b, make([]byte, 256)...)
}

func FuzzReadSegment(f *testing.F) {
	f.Add(image(f, 0), int64(headerSize))
	f.Add(image(f, 3), int64(headerSize))
	f.Add(image(f, 3)[:300], int64(headerSize))
	f.Add([]byte(magic), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, from int64) {
		r := bytes.NewReader(b)
		seq, drained, err := readHeader(r)
		if err != nil {
			return
		}
		if drained < headerSize || drained%8 != 0 {
			t.Fatalf("drained %d", drained)
		}
		from = max(from&^7, 0)
		fs := readFrames(r, seq, from, int64(len(b)))
		at := int64(-1)
		for {
			fr, err := fs.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if fr.off <= at || fr.end() > int64(len(b)) {
				t.Fatalf("frame at %d to %d after %d in %d bytes", fr.off, fr.end(), at, len(b))
			}
			at = fr.off
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	good, err := appendRecord(nil, record(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{codecVersion})
	f.Add([]byte{99})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			return
		}
		again, err := appendRecord(nil, &r)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if back, err := decodeRecord(again); err != nil || back != r {
			t.Fatalf("%v\n got %+v\nwant %+v", err, back, r)
		}
	})
}

func TestFramesOfAnotherPlaceDoNotCount(t *testing.T) {
	b := image(t, 2)
	moved := append(makeHeader(6), b[headerSize:]...)
	fs := readFrames(bytes.NewReader(moved), 6, headerSize, int64(len(moved)))
	if _, err := fs.next(); !errors.Is(err, io.EOF) || fs.torn != 2 {
		t.Errorf("frames of segment 5 in segment 6: %v, %d torn", err, fs.torn)
	}
}

func TestMalformedIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.StringMatching(`[0-9a-f-]{36}`), rapid.StringN(0, 40, 40)).Draw(t, "id")
		b, err := appendUUID(nil, id)
		if err == nil && (&decoder{rest: b}).uuid() != id {
			t.Fatalf("%q reads back as something else", id)
		}
	})
}

// A machine that dies may have written any pages of what was not flushed: all
// frames before the first page that is missing must still be read, and nothing
// that was never written.
func TestPagesLostInAMachineCrash(t *testing.T) {
	const page, rows = 512, 40
	whole := image(t, rows)
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(whole)
		first := len(b)
		for _, p := range rapid.SliceOfN(rapid.IntRange(1, len(b)/page-1), 1, 6).Draw(t, "pages") {
			clear(b[p*page : (p+1)*page])
			first = min(first, p*page)
		}
		fs := readFrames(bytes.NewReader(b), 5, headerSize, int64(len(b)))
		ref := readFrames(bytes.NewReader(whole), 5, headerSize, int64(len(whole)))
		for {
			want, _ := ref.next()
			if want.payload == nil || want.end() > int64(first) {
				break
			}
			got, err := fs.next()
			if err != nil || got.off != want.off || !bytes.Equal(got.payload, want.payload) {
				t.Fatalf("frame at %d before the first lost page at %d: %v", want.off, first, err)
			}
		}
		for got, err := fs.next(); err == nil; got, err = fs.next() {
			if !bytes.Equal(got.payload, whole[got.off+frameHead:][:len(got.payload)]) {
				t.Fatalf("frame at %d was never written so", got.off)
			}
		}
	})
}
