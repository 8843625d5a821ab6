// Package journal keeps a cascade's decisions and what was learned from them on
// disk: an append-only log of decisions and late labels, and snapshots of the
// learned state. A restart is the latest snapshot and the log's tail. Neither
// holds the text of a request or of an answer.
package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/verifier"
)

// Kind says what a record is.
type Kind string

// The kinds. A label belongs to the decision with the same request.
const (
	KindDecision Kind = "decision"
	KindLabel    Kind = "label"
)

// Kinds of labels that a node has. LabelAgreement compares the edge's answer with
// the cloud's; LabelFeedback is somebody's word on the answer given, which has one
// of the two alone, and no propensity: who speaks chose to.
const (
	LabelAgreement = "agreement"
	LabelFeedback  = "feedback"
)

// Record is one entry of the log.
type Record struct {
	Seq      uint64    `json:"seq"`                  // set by the journal, 1, 2, ...
	UnixNS   int64     `json:"unix_ns"`              // when, by the caller's clock
	Kind     Kind      `json:"kind"`                 //
	Request  string    `json:"request"`              // operation id
	Cell     string    `json:"cell"`                 //
	Key      string    `json:"key,omitempty"`        // id of the API key, never its secret
	Judged   bool      `json:"judged,omitempty"`     // the policy's rule was asked
	Private  bool      `json:"private"`              // may never be labelled in the shadow
	Policy   string    `json:"policy"`               // name and version of the policy
	Model    string    `json:"model"`                // fingerprint of the edge model
	Tier     string    `json:"tier"`                 // that answered
	Reason   string    `json:"reason"`               //
	Outcome  string    `json:"outcome,omitempty"`    // tenants.Outcome; "" in older logs
	Conf     *float64  `json:"confidence,omitempty"` // nil when the signal was unusable
	Gain     float64   `json:"gain,omitempty"`
	Theta    float64   `json:"theta,omitempty"`
	Features []float64 `json:"features,omitempty"`
	// Scored is cascade.ScoredAnswer where the features are of the answer's span
	// alone; "" where they are of all tokens, as in older logs. Spans counts the
	// tokens of each span; nil where they were not told apart.
	Scored string `json:"scored,omitempty"`
	Spans  *Spans `json:"spans,omitempty"`
	// Embedding is the outcome of asking the embedding endpoint for the prompt.
	Embedding string `json:"embedding,omitempty"`
	// Propensity is the probability with which a label of this decision is
	// seen; Shadow says that it was chosen to be.
	Propensity float64 `json:"propensity,omitempty"`
	Shadow     bool    `json:"shadow,omitempty"`
	// Votes are those of the model that answered on its own answer. Where they
	// counted, Before is the confidence without them.
	Votes  *verifier.Votes `json:"votes,omitempty"`
	Before *float64        `json:"before,omitempty"`
	// CostNano and EdgeMS, CloudMS are what it took.
	CostNano int64   `json:"cost_nano,omitempty"`
	EdgeMS   float64 `json:"edge_ms,omitempty"`
	CloudMS  float64 `json:"cloud_ms,omitempty"`
	// Edge and Cloud are labels in [0, 1], of kind LabelKind (truth, feedback,
	// validator, judge, agreement).
	Edge      *float64 `json:"edge,omitempty"`
	Cloud     *float64 `json:"cloud,omitempty"`
	LabelKind string   `json:"label_kind,omitempty"`
}

// Spans counts an answer's tokens by what they are.
type Spans struct {
	Answer    int `json:"answer"` // the only ones that are scored
	Think     int `json:"think,omitempty"`
	Structure int `json:"structure,omitempty"`
	Prose     int `json:"prose,omitempty"`
}

// SpansOf are an answer's counts.
func SpansOf(n *cascade.SpanTokens) *Spans {
	return &Spans{n[cascade.SpanAnswer], n[cascade.SpanThink], n[cascade.SpanStructure], n[cascade.SpanProse]}
}

// maxRecord bounds a record's payload, bytes.
const maxRecord = 64 << 10

// ErrRecord says that a record cannot be written: it is too long or has a kind
// or reason outside the closed sets.
var ErrRecord = errors.New("record cannot be logged")

// errTorn says that the log ends in a record that was not written whole, or
// that its bytes are damaged.
var errTorn = errors.New("torn or damaged record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode appends length, CRC32C and payload to dst.
func encode(dst []byte, r *Record) ([]byte, error) {
	if r.Kind != KindDecision && r.Kind != KindLabel {
		return dst, fmt.Errorf("%w: kind %q", ErrRecord, r.Kind)
	}
	if r.Reason != "" && !cascade.Reason(r.Reason).Valid() {
		return dst, fmt.Errorf("%w: reason %q", ErrRecord, r.Reason)
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if len(payload) > maxRecord {
		return dst, fmt.Errorf("%w: %d bytes, most %d", ErrRecord, len(payload), maxRecord)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(payload, castagnoli))
	return append(dst, payload...), nil
}

// readRecord reads one record and its size on disk. At a clean end it returns
// io.EOF, otherwise errTorn.
func readRecord(r io.Reader, buf []byte) (rec Record, size int, _ []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return rec, 0, buf, io.EOF
		}
		return rec, 0, buf, errTorn
	}
	n := binary.LittleEndian.Uint32(head[:4])
	if n == 0 || n > maxRecord {
		return rec, 0, buf, errTorn
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return rec, 0, buf, errTorn
	}
	if crc32.Checksum(buf, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return rec, 0, buf, errTorn
	}
	if err := json.Unmarshal(buf, &rec); err != nil {
		return rec, 0, buf, errTorn
	}
	return rec, len(head) + int(n), buf, nil
}
