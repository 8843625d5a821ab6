// Package sse reads and writes server-sent events as OpenAI's API uses them:
// data lines, comments as heartbeats, "[DONE]" at the end.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// MaxEvent is the longest event that Reader accepts, in bytes.
const MaxEvent = 4 << 20

// Done is the data of the last event of a complete stream.
const Done = "[DONE]"

// ErrTooLong says that an event is longer than MaxEvent.
var ErrTooLong = errors.New("sse: event is too long")

// Writer sends events and flushes each. Not safe for concurrent use.
type Writer struct {
	w   io.Writer
	rc  *http.ResponseController
	buf []byte
}

// Start writes the stream's headers and status 200 and returns a Writer.
func Start(w http.ResponseWriter) *Writer {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &Writer{w: w, rc: http.NewResponseController(w)}
	_ = s.rc.Flush() // a writer that cannot flush still streams at its own pace
	return s
}

// Data sends one event. data must not contain a line feed (JSON does not).
func (s *Writer) Data(data []byte) error { return s.write("data: ", data, "\n\n") }

// Comment sends a comment line, which clients ignore: a heartbeat.
func (s *Writer) Comment(text string) error { return s.write(": ", []byte(text), "\n\n") }

// Done ends a complete stream.
func (s *Writer) Done() error { return s.Data([]byte(Done)) }

func (s *Writer) write(prefix string, data []byte, suffix string) error {
	s.buf = append(append(append(s.buf[:0], prefix...), data...), suffix...)
	if _, err := s.w.Write(s.buf); err != nil {
		return fmt.Errorf("sse: write: %w", err)
	}
	if err := s.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("sse: flush: %w", err)
	}
	return nil
}

// Reader reads events from a stream of foreign bytes.
type Reader struct {
	r   *bufio.Reader
	buf []byte
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 16<<10)} }

// Next returns the data of the next event that has any; data lines of one
// event are joined by line feeds. The slice is valid until the next call.
// It returns io.EOF at a clean end (also when the last event lacks its empty
// line) and ErrTooLong for an event over MaxEvent.
func (r *Reader) Next() ([]byte, error) {
	r.buf = r.buf[:0]
	has := false
	for {
		line, err := r.line()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		atEnd := errors.Is(err, io.EOF)
		if len(line) == 0 && has {
			return r.buf, nil
		}
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if has {
				r.buf = append(r.buf, '\n')
			}
			has = true
			r.buf = append(r.buf, bytes.TrimPrefix(data, []byte(" "))...)
			if len(r.buf) > MaxEvent {
				return nil, ErrTooLong
			}
		}
		if atEnd {
			if has {
				return r.buf, nil
			}
			return nil, io.EOF
		}
	}
}

// line returns the next line without its end.
func (r *Reader) line() ([]byte, error) {
	line, err := r.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(long) > MaxEvent {
				return nil, ErrTooLong
			}
			line, err = r.r.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	return line, err
}
