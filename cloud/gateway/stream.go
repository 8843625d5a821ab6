package gateway

import (
	"net/http"
	"time"

	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
)

// maxEarly is how many events may come before the first token: a role chunk,
// a heartbeat or two.
const maxEarly = 16

// stream is the client's side of a streamed answer. It outlives attempts: what
// one began another may continue. Until the first token nothing is written, so
// that a failing instance can be replaced unseen. The last event is held back
// until the next one comes, because the weir object belongs into the one before
// [DONE].
type stream struct {
	*exchange
	out      *sse.Writer // nil until the first token
	early    [][]byte    // events before the first token
	held     []byte
	holding  bool
	writable time.Time
	shown    shown
}

// begun reports whether the client has seen a part of the answer.
func (s *stream) begun() bool { return s != nil && s.out != nil }

// resumes reports whether a leg goes on with what an earlier one said.
func (s *stream) resumes() bool { return s.begun() && s.shown.generated > 0 }

// anew forgets what an attempt that showed nothing has left.
func (s *stream) anew() { s.early, s.holding, s.shown = s.early[:0], false, shown{} }

// hold keeps an event until the next one comes.
func (s *stream) hold(data []byte) { s.held, s.holding = append(s.held[:0], data...), true }

// release sends the event that was held back.
func (s *stream) release() error {
	if !s.holding {
		return nil
	}
	s.holding = false
	return s.emit(s.held, true)
}

// emit sends an event, or keeps it while no token has come.
func (s *stream) emit(data []byte, token bool) error {
	if s.out == nil {
		if !token && len(s.early) < maxEarly {
			s.early = append(s.early, append([]byte(nil), data...))
			return nil
		}
		if err := s.start(); err != nil {
			return err
		}
	}
	s.allowWrite()
	return s.out.Data(data)
}

// start commits to the attempt: the head and the early events leave.
func (s *stream) start() error {
	h := s.gin.Writer.Header()
	s.setTimes()
	s.result.WriteHeaders(h)
	h.Del(contract.HeaderCost) // not known yet: the weir object tells
	s.admitted.grant.SetHeaders(h)
	s.timing().Write(h)
	s.wrote = true
	s.allowWrite()
	s.out = sse.Start(s.gin.Writer)
	for _, data := range s.early {
		if err := s.out.Data(data); err != nil {
			return err
		}
	}
	s.early = nil
	return nil
}

// allowWrite moves the write deadline, at most once a second: a client that
// stops reading must not hold an instance.
func (s *stream) allowWrite() {
	now := time.Now()
	if patience := s.g.opts.Timeouts.Write; now.Add(patience).Sub(s.writable) > time.Second {
		s.writable = now.Add(patience)
		_ = http.NewResponseController(s.gin.Writer).SetWriteDeadline(s.writable) // not every transport has one
	}
}

// close takes the write deadline back: it is the connection's, and must not
// outlive this answer.
func (s *stream) close() {
	if s.begun() {
		_ = http.NewResponseController(s.gin.Writer).SetWriteDeadline(time.Time{})
	}
}

// complete ends a whole stream: the last event carries the weir object. The
// answer is settled: a client that leaves now has had it.
func (s *stream) complete() {
	s.setTimes()
	last := s.held
	if !s.holding {
		last = s.bareChunk()
	}
	s.holding = false
	if s.emit(chunk.AppendWeir(nil, last, mustJSON(&s.result)), true) == nil {
		_ = s.out.Done()
	}
}

// cut ends a stream that cannot be completed: the client gets an error event
// and no [DONE].
func (s *stream) cut(failure *openai.Error) {
	s.setTimes()
	if s.release() != nil {
		return // the client is gone
	}
	s.allowWrite()
	_ = s.out.Data(failure.Body(&s.result)) // the client may be gone
}

// bareChunk is an event for the weir object where the upstream's stream had no
// last event of its own.
func (s *stream) bareChunk() []byte {
	object := openai.ObjectChatChunk
	if s.ask.kind == kindText {
		object = openai.ObjectCompletion
	}
	bare := mustJSON(openai.Response{ID: "weir-" + s.op, Object: object, Created: s.exchange.began.Unix(), Model: s.result.Model, Choices: []openai.Choice{}})
	return (&chunk.Rewrite{ID: s.shown.id, Created: s.shown.created}).Append(nil, bare)
}
