package handoff

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
)

var testInfo = engine.Info{Vocab: 5, KVBytesPerToken: 8, Fingerprint: engine.Fingerprint{Weights: "w", Runner: "r", KV: "k"}}

func TestPayloadRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := loop.Handoff{Tokens: rapid.SliceOfN(rapid.Int32(), 0, 20).Draw(t, "tokens"),
			Logits: rapid.SliceOfN(rapid.Float32(), 5, 5).Draw(t, "logits"), KV: rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 100), 0, 3).Draw(t, "kv")}
		it := NewItem(in, testInfo.Fingerprint)
		var b bytes.Buffer
		if err := errors.Join(writeHeader(&b, it.Header), it.writePayload(&b)); err != nil {
			t.Fatal(err)
		}
		h, err := readHeader(&b)
		if err != nil || h.check(testInfo, len(in.Tokens), 0) != nil || h.payload() != int64(b.Len()) {
			t.Fatalf("%v, %+v", err, h)
		}
		raw := slices.Clone(b.Bytes())
		out, err := readPayload(&b, h)
		if err != nil || !slices.Equal(out.Tokens, in.Tokens) || !slices.Equal(out.Logits, in.Logits) || !slices.EqualFunc(out.KV, in.KV, bytes.Equal) {
			t.Fatalf("%v: %v, want %v", err, out, in)
		}
		at := rapid.IntRange(0, len(raw)-1).Draw(t, "bit")
		raw[at] ^= 1
		if _, err := readPayload(bytes.NewReader(raw), h); !errors.Is(err, errVerify) {
			t.Fatalf("byte %d changed: %v", at, err)
		}
		if _, err := readPayload(bytes.NewReader(raw[:at]), h); err == nil {
			t.Fatal("cut short: no error")
		}
	})
}

func TestHeaderCheck(t *testing.T) {
	good := Header{Status: statusOK, Tokens: 4, Vocab: 5, KVParts: []int64{30, 10}, Fingerprint: testInfo.Fingerprint.String()}
	if err := good.check(testInfo, 4, 0); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Header){
		"fingerprint": func(h *Header) { h.Fingerprint = "w:r:other" },
		"tokens":      func(h *Header) { h.Tokens = 5 },
		"negative":    func(h *Header) { h.Tokens = -4 },
		"vocabulary":  func(h *Header) { h.Vocab = 6 },
		"no KV":       func(h *Header) { h.KVParts[1] = -1 },
		"many parts":  func(h *Header) { h.KVParts = make([]int64, maxParts+1) },
		"not whole":   func(h *Header) { h.From = 2 },
		"huge":        func(h *Header) { h.KVParts[0] = math.MaxInt64 },
	} {
		h := good
		h.KVParts = slices.Clone(good.KVParts)
		change(&h)
		if err := h.check(testInfo, 4, 0); !errors.Is(err, errVerify) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func frame(size int, data string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(size)), data...)
}

func TestFrames(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":          nil,
		"zero":           frame(0, ""),
		"too long":       frame(maxHeader+1, "{}"),
		"cut":            frame(10, "{}"),
		"not JSON":       frame(2, "}{"),
		"unknown member": frame(9, `{"what":1}`[:9]),
		"wrong type":     frame(14, `{"tokens":"x"}`),
	} {
		if _, err := readHeader(bytes.NewReader(b)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := writeRequest(io.Discard, request{Operation: string(make([]byte, maxRequest))}); !errors.Is(err, ErrFrame) {
		t.Errorf("long request: %v", err)
	}
}

// FuzzHeader feeds foreign bytes to the reader's side: it never panics and
// never allocates for a header that check refuses.
func FuzzHeader(f *testing.F) {
	var b bytes.Buffer
	it := NewItem(loop.Handoff{Tokens: []engine.Token{1, 2}, Logits: make([]float32, 5), KV: [][]byte{[]byte("kv")}}, testInfo.Fingerprint)
	_ = errors.Join(writeHeader(&b, it.Header), it.writePayload(&b))
	f.Add(b.Bytes())
	f.Add(frame(2, "{}"))
	f.Add(append(frame(43, `{"tokens":2,"kv_parts":[1],"fingerprint":""}`), 1, 2, 3, 4, 5, 6, 7, 8, 9))
	f.Add(frame(5000, "{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		h, err := readHeader(r)
		if err != nil || h.check(testInfo, 2, 0) != nil && h.checkStage(engine.Info{Context: 4}) != nil {
			return
		}
		if h.Vocab == 0 {
			_, _ = readPayload(r, h)
			return
		}
		if out, err := readPayload(r, h); err == nil && (len(out.Tokens) != 2 || len(out.Logits) != 5) {
			t.Errorf("%+v", out)
		}
	})
}

// FuzzRequest feeds foreign bytes to the serving side.
func FuzzRequest(f *testing.F) {
	var b bytes.Buffer
	_ = writeRequest(&b, request{Handle: Handle{}.String(), Operation: "op"})
	f.Add(b.Bytes())
	f.Add([]byte{0, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := readRequest(bytes.NewReader(data))
		if err == nil && len(req.Handle)+len(req.Operation) > maxRequest {
			t.Errorf("%d bytes in a request", len(req.Handle)+len(req.Operation))
		}
	})
}

// FuzzParams feeds what came through a gateway.
func FuzzParams(f *testing.F) {
	it := NewItem(loop.Handoff{Tokens: make([]engine.Token, 40)}, testInfo.Fingerprint)
	raw, _ := json.Marshal(it.Offer(Handle{1}, it.expiry(), "epoch", "127.0.0.1", 7424, 16))
	f.Add(raw)
	f.Add([]byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":null}`))
	f.Add([]byte(`{"do_remote_prefill":true,"remote_block_ids":[1,2],"remote_port":"5"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		leg, err := LegOf(data)
		if err != nil || leg != Decode {
			return
		}
		if s, err := ParseSource(data, "op"); err == nil && (s.Addr == "" || s.Operation != "op") {
			t.Errorf("%+v", s)
		}
	})
}

func TestOfferIsReadBack(t *testing.T) {
	it := NewItem(loop.Handoff{Tokens: make([]engine.Token, 33), KV: [][]byte{[]byte("kv")}}, testInfo.Fingerprint)
	until := it.expiry()
	offer := it.Offer(Handle{7}, until, "epoch", "::1", 7424, 16)
	if len(offer.BlockIDs) != 1 || len(offer.BlockIDs[0]) != 3 || offer.NumTokens != 33 {
		t.Errorf("offer %+v", offer)
	}
	raw, err := json.Marshal(offer)
	if err != nil {
		t.Fatal(err)
	}
	if leg, err := LegOf(raw); err != nil || leg != Decode {
		t.Errorf("leg %v, %v", leg, err)
	}
	s, err := ParseSource(raw, "op")
	if err != nil || s.Addr != "[::1]:7424" || s.Epoch != "epoch" || s.Handle != (Handle{7}) ||
		s.Extra.SHA256 != it.Header.SHA256 || s.Extra.Bytes != it.Header.payload() {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestLegOf(t *testing.T) {
	for raw, want := range map[string]Legs{"null": Whole, "{}": Whole, `{"do_remote_decode":true}`: Prefill,
		`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null}`: Prefill,
		`{"do_remote_prefill":true,"remote_block_ids":["a"]}`:                         Decode,
		`{"do_remote_prefill":null,"do_remote_decode":null}`:                          Whole} {
		if got, err := LegOf(json.RawMessage(raw)); err != nil || got != want {
			t.Errorf("%s: %v, %v", raw, got, err)
		}
	}
	if got, err := LegOf(nil); err != nil || got != Whole {
		t.Errorf("absent: %v, %v", got, err)
	}
	for _, raw := range []string{"3", `"x"`, "[]", `{"do_remote_decode":1}`, `{"do_remote_decode":true,"do_remote_prefill":true}`,
		`{"x":"` + string(bytes.Repeat([]byte("x"), MaxParams)) + `"}`} {
		if _, err := LegOf(json.RawMessage(raw)); err == nil {
			t.Errorf("%.40s: no error", raw)
		}
	}
}
