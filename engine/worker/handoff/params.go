package handoff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Params is a request's or an answer's kv_transfer_params: vLLM's members
// (protocols.md 2.2) and one of Weir's own.
type Params struct {
	DoRemotePrefill bool    `json:"do_remote_prefill"` // the state lies elsewhere: pull it
	DoRemoteDecode  bool    `json:"do_remote_decode"`  // another will decode: offer the state
	EngineID        string  `json:"remote_engine_id"`  // epoch of the worker that has the state
	RequestID       string  `json:"remote_request_id"` // handle
	BlockIDs        [][]int `json:"remote_block_ids"`  // one list: the runner has one KV group
	Host            string  `json:"remote_host"`
	Port            int     `json:"remote_port"`
	NumTokens       int     `json:"remote_num_tokens"`
	Expiry          float64 `json:"remote_blocks_expiry_time"` // Unix seconds
	Mode            string  `json:"transfer_mode"`
	Weir            *Extra  `json:"weir,omitempty"`
}

// Extra lets the reader check a hand-off against what came through the gateway.
type Extra struct {
	From        int    `json:"from,omitempty"` // position from which on Bytes and SHA256 count
	Bytes       int64  `json:"bytes"`
	SHA256      string `json:"sha256"`
	Fingerprint string `json:"fingerprint"`
}

// MaxParams is the longest kv_transfer_params that is read, in bytes.
const MaxParams = 64 << 10

// Legs are what kv_transfer_params can ask of a worker.
type Legs int

// Values of Legs.
const (
	Whole   Legs = iota // neither: an ordinary request
	Prefill             // do_remote_decode
	Decode              // do_remote_prefill
)

// LegOf tells which leg raw asks for. It reads only the two booleans, so that
// members of other engines' versions cannot make it fail.
func LegOf(raw json.RawMessage) (Legs, error) {
	if raw == nil || bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return Whole, nil
	}
	var p struct {
		Prefill *bool `json:"do_remote_prefill"`
		Decode  *bool `json:"do_remote_decode"`
	}
	if len(raw) > MaxParams || json.Unmarshal(raw, &p) != nil {
		return Whole, errors.New("must be an object with do_remote_prefill and do_remote_decode")
	}
	prefill, decode := p.Prefill != nil && *p.Prefill, p.Decode != nil && *p.Decode
	switch {
	case prefill && decode:
		return Whole, errors.New("asks for both legs at once")
	case decode:
		return Prefill, nil
	case prefill:
		return Decode, nil
	}
	return Whole, nil
}

// Source is where a decode leg finds its prompt's state.
type Source struct {
	Addr, Epoch string
	Handle      Handle
	Operation   string
	Extra       *Extra
}

// ParseSource reads the members that a pull needs. The time of expiry is none of
// them: the lease may have been renewed, and clocks differ. The peer knows.
func ParseSource(raw json.RawMessage, operation string) (Source, error) {
	var p struct {
		Params
		BlockIDs json.RawMessage `json:"remote_block_ids"` // its shape differs between versions
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return Source{}, fmt.Errorf("kv_transfer_params: %w", err)
	}
	h, err := ParseHandle(p.RequestID)
	switch {
	case err != nil:
		return Source{}, fmt.Errorf("kv_transfer_params: remote_request_id: %w", err)
	case p.Host == "" || len(p.Host) > 253:
		return Source{}, errors.New("kv_transfer_params: remote_host is not a host")
	case p.Port < 1 || p.Port > 65535:
		return Source{}, fmt.Errorf("kv_transfer_params: remote_port is %d", p.Port)
	}
	return Source{Addr: net.JoinHostPort(p.Host, strconv.Itoa(p.Port)), Epoch: p.EngineID, Handle: h, Operation: operation, Extra: p.Weir}, nil
}

// Offer is the prefill leg's answer for a stored item.
func (i *Item) Offer(h Handle, expires time.Time, epoch, host string, port, blockSize int) Params {
	blocks := make([]int, (len(i.Tokens)+blockSize-1)/blockSize)
	for b := range blocks {
		blocks[b] = b
	}
	return Params{DoRemotePrefill: true, EngineID: epoch, RequestID: h.String(), BlockIDs: [][]int{blocks},
		Host: host, Port: port, NumTokens: len(i.Tokens), Expiry: float64(expires.UnixMilli()) / 1000, Mode: "pull",
		Weir: &Extra{From: i.Header.From, Bytes: i.Header.payload(), SHA256: i.Header.SHA256, Fingerprint: i.Header.Fingerprint}}
}
