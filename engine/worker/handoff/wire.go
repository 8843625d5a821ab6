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

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
)

// ALPN is the protocol's name in the TLS handshake.
const ALPN = "weir-kv/1"

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

// request is the reader's frame.
type request struct {
	Handle    string `json:"handle"`
	Operation string `json:"operation"`
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
	Status      string `json:"status"`
	Tokens      int    `json:"tokens"`
	Vocab       int    `json:"vocab"`
	KVBytes     int64  `json:"kv_bytes"`
	SHA256      string `json:"sha256"` // of the payload, hex
	Fingerprint string `json:"fingerprint"`
}

// payload is the number of bytes after the header.
func (h Header) payload() int64 { return 4*int64(h.Tokens) + 4*int64(h.Vocab) + h.KVBytes }

// NewItem prepares a hand-off for a Store: it computes the checksum.
func NewItem(h loop.Handoff, f engine.Fingerprint) *Item {
	i := &Item{Handoff: h, Header: Header{Status: statusOK, Tokens: len(h.Tokens), Vocab: len(h.Logits),
		KVBytes: int64(len(h.KV)), Fingerprint: f.String()}}
	sum := sha256.New()
	_ = i.writePayload(sum) // a hash takes everything
	i.Header.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return i
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
	_, err := w.Write(i.KV)
	return err
}

// readPayload reads what h announces; check must have accepted h.
func readPayload(r io.Reader, h Header) (loop.Handoff, error) {
	var out loop.Handoff
	sum := sha256.New()
	front := make([]byte, 4*(h.Tokens+h.Vocab))
	kv := make([]byte, h.KVBytes)
	for _, part := range [][]byte{front, kv} {
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
	out.KV = kv
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

// check decides whether h can be a hand-off of prompt for this model, before
// anything is allocated for it.
func (h Header) check(info engine.Info, prompt int) error {
	// Exported KV has some bytes around the cells; twice the cells is ample.
	most := 2*int64(prompt)*int64(info.KVBytesPerToken) + 1<<20
	switch {
	case h.Fingerprint != info.Fingerprint.String():
		return fmt.Errorf("%w: another model, runner or KV format", errVerify)
	case h.Tokens != prompt:
		return fmt.Errorf("%w: it holds %d tokens, the prompt has %d", errVerify, h.Tokens, prompt)
	case h.Vocab != info.Vocab:
		return fmt.Errorf("%w: a logits row of %d, not %d", errVerify, h.Vocab, info.Vocab)
	case h.KVBytes < 0 || h.KVBytes > most:
		return fmt.Errorf("%w: %d bytes of KV for %d tokens", errVerify, h.KVBytes, prompt)
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
