package handoff

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
)

// ALPN is the protocol's name in the TLS handshake.
const ALPN = "weir-kv/2"

// Limits of the protocol's frames, in bytes.
const (
	maxRequest = 512
	maxHeader  = 4096
)

// ErrFrame says that a peer's bytes are not the protocol.
var ErrFrame = errors.New("hand-off frame is malformed")

// Status values of a Header.
const (
	statusOK   = "ok"
	statusGone = "gone"
)

// request is the first frame of a stream. Whoever sends it has the first Have
// tokens' KV already, or with Stage sends KV ahead of a hand-off.
type request struct {
	Handle    string `json:"handle"`
	Operation string `json:"operation"`
	Have      int    `json:"have,omitempty"`
	Stage     bool   `json:"stage,omitempty"`
}

// receipt is what a reader sends once the payload is verified.
const receipt = 'K'

func readReceipt(r io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("no receipt: %w", err)
	}
	if b[0] != receipt {
		return fmt.Errorf("%w: receipt %#x", ErrFrame, b[0])
	}
	return nil
}

// Header describes the payload that follows it.
type Header struct {
	Status      string  `json:"status"`
	From        int     `json:"from,omitempty"` // position at which the KV begins
	Tokens      int     `json:"tokens"`         // all of them, those before From too
	Vocab       int     `json:"vocab"`          // 0: no logits, the request goes on where it is
	KVParts     []int64 `json:"kv_parts"`       // bytes of each
	SHA256      string  `json:"sha256"`         // of the payload, hex
	Fingerprint string  `json:"fingerprint"`
	// StoppedMS is for how many milliseconds a request that moves has stood still;
	// 0 for a prompt.
	StoppedMS float64 `json:"stopped_ms,omitempty"`
}

// maxParts is how many parts the KV of a hand-off may have.
const maxParts = 8

// kvBytes is the size of all parts.
func (h Header) kvBytes() (n int64) {
	for _, p := range h.KVParts {
		n += p
	}
	return n
}

// payload is the number of bytes after the header.
func (h Header) payload() int64 { return 4*int64(h.Tokens) + 4*int64(h.Vocab) + h.kvBytes() }

// NewItem prepares a hand-off: it computes the checksum.
func NewItem(h loop.Handoff, f engine.Fingerprint) *Item { return newItem(h, f.String()) }

// NewStaged prepares the hand-off of a request whose KV was sent ahead but for
// the last part. Starts are the positions at which the parts begin.
func NewStaged(h loop.Handoff, f engine.Fingerprint, starts []int) *Item {
	last := h
	last.From, last.KV = starts[len(starts)-1], h.KV[len(starts)-1:]
	return &Item{Handoff: h, Header: NewItem(last, f).Header, Starts: starts}
}

func newItem(h loop.Handoff, fingerprint string) *Item {
	i := &Item{Handoff: h, Header: Header{Status: statusOK, From: h.From, Tokens: len(h.Tokens), Vocab: len(h.Logits), Fingerprint: fingerprint}}
	for _, part := range h.KV {
		i.Header.KVParts = append(i.Header.KVParts, int64(len(part)))
	}
	sum := sha256.New()
	_ = i.writePayload(sum) // a hash takes everything
	i.Header.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return i
}

// after is what a reader needs who has the KV of the first have tokens: the whole
// where no part begins there.
func (i *Item) after(have int) *Item {
	rest := i.Handoff
	if at := slices.Index(i.Starts, have); at >= 0 {
		rest.From, rest.KV = have, i.KV[at:]
	}
	if rest.From == i.Header.From {
		return &Item{Handoff: rest, Header: i.Header}
	}
	return newItem(rest, i.Header.Fingerprint)
}

// writePayload sends tokens, logits and KV bytes.
func (i *Item) writePayload(w io.Writer) error {
	front := make([]byte, 0, 4*(len(i.Tokens)+len(i.Logits)))
	for _, t := range i.Tokens {
		front = binary.LittleEndian.AppendUint32(front, uint32(t))
	}
	for _, x := range i.Logits {
		front = binary.LittleEndian.AppendUint32(front, math.Float32bits(x))
	}
	if _, err := w.Write(front); err != nil {
		return err
	}
	for _, part := range i.KV {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// readPayload reads what h announces; check must have accepted h.
func readPayload(r io.Reader, h Header) (loop.Handoff, error) {
	out := loop.Handoff{From: h.From}
	sum := sha256.New()
	front := make([]byte, 4*(h.Tokens+h.Vocab))
	for _, size := range h.KVParts {
		out.KV = append(out.KV, make([]byte, size))
	}
	for _, part := range slices.Concat([][]byte{front}, out.KV) {
		if err := readHashed(r, part, sum); err != nil {
			return out, fmt.Errorf("hand-off payload: %w", err)
		}
	}
	if hex.EncodeToString(sum.Sum(nil)) != h.SHA256 {
		return out, fmt.Errorf("%w: the checksum differs", errVerify)
	}
	out.Tokens = make([]engine.Token, h.Tokens)
	for i := range out.Tokens {
		out.Tokens[i] = engine.Token(binary.LittleEndian.Uint32(front[4*i:]))
	}
	front = front[4*h.Tokens:]
	out.Logits = make([]float32, h.Vocab)
	for i := range out.Logits {
		out.Logits[i] = math.Float32frombits(binary.LittleEndian.Uint32(front[4*i:]))
	}
	return out, nil
}

// readHashed fills b and hashes it piece by piece, so that hashing overlaps
// with the transfer.
func readHashed(r io.Reader, b []byte, sum hash.Hash) error {
	for len(b) > 0 {
		n, err := io.ReadFull(r, b[:min(len(b), 64<<10)])
		sum.Write(b[:n])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

var errVerify = errors.New("hand-off does not fit")

// check decides whether h can be a hand-off of prompt for this model to a reader
// who has the KV of some tokens, before anything is allocated for it.
func (h Header) check(info engine.Info, prompt, have int) error {
	switch {
	case h.Tokens != prompt:
		return fmt.Errorf("%w: it holds %d tokens, the prompt has %d", errVerify, h.Tokens, prompt)
	case h.Vocab != info.Vocab:
		return fmt.Errorf("%w: a logits row of %d, not %d", errVerify, h.Vocab, info.Vocab)
	case h.From != 0 && h.From != have:
		return fmt.Errorf("%w: KV from position %d, the reader has %d", errVerify, h.From, have)
	}
	return h.checkKV(info)
}

// checkKV checks what a header says of KV.
func (h Header) checkKV(info engine.Info) error {
	// Exported KV has some bytes around the cells; twice the cells is ample.
	most := 2*int64(h.Tokens)*int64(info.KVBytesPerToken) + 1<<20
	if h.Fingerprint != info.Fingerprint.String() {
		return fmt.Errorf("%w: another model, runner or KV format", errVerify)
	}
	if len(h.KVParts) > maxParts {
		return fmt.Errorf("%w: %d parts of KV", errVerify, len(h.KVParts))
	}
	left := most
	for _, n := range h.KVParts {
		if n < 0 || n > left {
			return fmt.Errorf("%w: parts of %d bytes of KV for %d tokens", errVerify, h.KVParts, h.Tokens)
		}
		left -= n
	}
	return nil
}

func writeRequest(w io.Writer, r request) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(data) > maxRequest {
		return fmt.Errorf("%w: request of %d bytes", ErrFrame, len(data))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...))
	return err
}

func readRequest(r io.Reader) (request, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return request{}, err
	}
	var req request
	return req, readJSON(r, int64(binary.BigEndian.Uint16(size[:])), maxRequest, &req)
}

func writeHeader(w io.Writer, h Header) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

func readHeader(r io.Reader) (Header, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return Header{}, err
	}
	var h Header
	return h, readJSON(r, int64(binary.BigEndian.Uint32(size[:])), maxHeader, &h)
}

func readJSON(r io.Reader, size, most int64, v any) error {
	if size == 0 || size > most {
		return fmt.Errorf("%w: a frame of %d bytes", ErrFrame, size)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrFrame, err)
	}
	return nil
}
