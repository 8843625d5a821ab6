package tenants

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/uuid"
)

// answerVersion is the version of UUIDs made by AnswerID (RFC 9562, 5.8: the
// maker's own).
const answerVersion = 8

// AnswerID is the ledger's key for the whole answer to an attempt that a device
// makes: the same wherever and however often the request is answered, and
// another as soon as anything of it differs. attempt is a UUIDv7, whose time the
// id keeps; request is what the attempt asks for, all of it.
//
// Who makes the request chooses all that goes in, so two requests with the same
// id can be found, by about 2^37 tries: far more than the answer is worth.
func AnswerID(attempt uuid.UUID, request ...[]byte) string {
	h := sha256.New()
	h.Write(attempt[:])
	for _, part := range request {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	id := attempt
	copy(id[6:], h.Sum(nil))
	id[6] = id[6]&0x0f | answerVersion<<4
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// isAnswerID reports whether a canonical UUID may be one of AnswerID.
func isAnswerID(id string) bool { return id[14] == '0'+answerVersion }

// Minted is the time in an id that has one: of a UUIDv7, or of AnswerID. It is
// the maker's word.
func Minted(id uuid.UUID) (ms int64, ok bool) {
	if v := id.Version(); v != 7 && v != answerVersion {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(id[:8]) >> 16), true
}
