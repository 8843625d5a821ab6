package sse

import (
	"bytes"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
)

func readAll(t *testing.T, s string) (events []string, err error) {
	t.Helper()
	r := NewReader(strings.NewReader(s))
	for {
		data, err := r.Next()
		if err != nil {
			return events, err
		}
		events = append(events, string(data))
	}
}

func TestReader(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"two events", "data: a\n\ndata: b\n\n", "a|b"},
		{"crlf", "data: a\r\n\r\n", "a"},
		{"no space", "data:a\n\n", "a"},
		{"comments and other fields", ": ping\n\nevent: x\nid: 1\ndata: a\n\n", "a"},
		{"joined data lines", "data: a\ndata: b\n\n", "a\nb"},
		{"last event without its empty line", "data: a", "a"},
		{"empty data", "data:\n\ndata: b\n\n", "|b"},
		{"long line", "data: " + strings.Repeat("x", 100_000) + "\n\n", strings.Repeat("x", 100_000)},
		{"nothing", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			events, err := readAll(t, tt.in)
			if !errors.Is(err, io.EOF) || strings.Join(events, "|") != tt.want {
				t.Errorf("got %.100q, %v; want %.100q", events, err, tt.want)
			}
		})
	}
}

func TestReaderRefusesLongEvents(t *testing.T) {
	for name, in := range map[string]string{
		"one line":   "data: " + strings.Repeat("x", MaxEvent+1) + "\n\n",
		"many lines": strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 6),
	} {
		if _, err := readAll(t, in); !errors.Is(err, ErrTooLong) {
			t.Errorf("%s: got %v, want ErrTooLong", name, err)
		}
	}
}

func TestReaderPassesErrorsOn(t *testing.T) {
	want := errors.New("reset")
	r := NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotestErr{want}))
	if data, err := r.Next(); err != nil || string(data) != "a" {
		t.Fatalf("got %q, %v", data, err)
	}
	if _, err := r.Next(); !errors.Is(err, want) {
		t.Errorf("got %v, want %v: a cut stream must not look complete", err, want)
	}
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }

func TestWriterAndReaderAgree(t *testing.T) {
	rec := httptest.NewRecorder()
	w := Start(rec)
	for _, err := range []error{w.Data([]byte(`{"a":1}`)), w.Comment("beat"), w.Done()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	events, _ := readAll(t, rec.Body.String())
	if strings.Join(events, "|") != `{"a":1}|[DONE]` || !rec.Flushed {
		t.Errorf("got %q, flushed %v", events, rec.Flushed)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("data: a\n\n: c\r\ndata: b\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		for n := 0; ; n++ {
			if _, err := r.Next(); err != nil {
				return
			}
			if n > len(in) {
				t.Fatal("more events than bytes")
			}
		}
	})
}
