package journal

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
)

// Found is what a log holds of a request.
type Found struct {
	Decision Record  `json:"decision"`
	Label    *Record `json:"label,omitempty"`    // the latest that something was learned from
	Feedback *Record `json:"feedback,omitempty"` // the latest word of somebody on the answer
}

// take replaces what an older record of the request said.
func (f *Found) take(r *Record) {
	switch r.slot() {
	case slotDecision:
		f.Decision = *r
	case slotLabel:
		f.Label = r
	case slotFeedback:
		f.Feedback = r
	}
}

// slot tells the records of a request apart.
type slot int

const (
	slotDecision slot = iota
	slotLabel
	slotFeedback
	slots
)

func (r *Record) slot() slot {
	switch {
	case r.Kind == KindDecision:
		return slotDecision
	case r.LabelKind == LabelFeedback:
		return slotFeedback
	}
	return slotLabel
}

// segment is a file of the log, with the places of each request's latest records
// in it. A request is known by a hash of its id; its records
// say whose they are.
type segment struct {
	f      *os.File // nil: there is none
	places map[uint64]place
}

// place is where a request's records begin, offset + 1; 0: it has none.
type place [slots]uint32

var seed = maphash.MakeSeed()

// note remembers where a record is.
func (s *segment) note(r *Record, at int64) {
	h := maphash.String(seed, r.Request)
	p := s.places[h]
	p[r.slot()] = uint32(at) + 1
	s.places[h] = p
}

// find adds what the segment holds of a request.
func (s *segment) find(request string, to *Found) error {
	for _, at := range s.places[maphash.String(seed, request)] {
		if at == 0 {
			continue
		}
		r, _, _, err := readRecord(io.NewSectionReader(s.f, int64(at)-1, maxRecord+8), nil)
		if err != nil {
			return fmt.Errorf("read decision log: %w", err)
		}
		if r.Request == request {
			to.take(&r)
		}
	}
	return nil
}

func (s *segment) close() error {
	if s.f == nil {
		return nil
	}
	return s.f.Close()
}

// Find returns what the log holds of a request, and false where it does not hold
// the decision any more. It reads the request's own records only.
func (j *Journal) Find(request string) (f Found, ok bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	err = errors.Join(j.old.find(request, &f), j.now.find(request, &f))
	return f, f.Decision.Kind != "", err
}

// Find reads the log in dir without opening it for writing.
func Find(dir, request string) (f Found, ok bool, err error) {
	err = Replay(dir, 0, func(r Record) error {
		if r.Request == request {
			f.take(&r)
		}
		return nil
	})
	return f, f.Decision.Kind != "", err
}
