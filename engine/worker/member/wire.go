package member

import (
	"errors"
	"fmt"

	"github.com/weirhq/weir/internal/enroll"
)

// Paths of the cloud for workers, on its TLS listener. PathJoin takes a join
// token; the others take the worker's certificate.
const (
	PathJoin      = "/worker/v1/join"
	PathRenew     = "/worker/v1/renew"
	PathRegister  = "/worker/v1/register"
	PathHeartbeat = "/worker/v1/heartbeat"
	PathLeave     = "/worker/v1/leave"
)

// JoinRequest is the body of PathJoin.
type JoinRequest struct {
	Token string `json:"token"`
	CSR   string `json:"csr"`  // PEM; only its public key matters
	Name  string `json:"name"` // of the instance
	Host  string `json:"host"` // DNS name or IP address under which gateways and workers reach it
}

// JoinReply answers it. PathRenew answers the same without the authority.
type JoinReply struct {
	Certificate string `json:"certificate"` // PEM, for the key of the request
	CA          string `json:"ca,omitempty"`
}

// RenewRequest is the body of PathRenew.
type RenewRequest struct {
	CSR string `json:"csr"` // for the same key
}

// Registration is the body of PathRegister: what a process tells of itself. The
// name is the certificate's.
type Registration struct {
	URL         string `json:"url"`          // base of the API, without /v1
	KV          string `json:"kv,omitempty"` // host:port for hand-offs
	Role        string `json:"role"`
	Model       string `json:"model"`
	Fingerprint string `json:"fingerprint"`
	Epoch       string `json:"epoch"`
	// Replaces is the epoch of the process whose membership this one takes; "" is of
	// none. Workers of before 2026-11-30 leave it out: they take anybody's.
	Replaces *string `json:"replaces,omitempty"`
}

// RegisterReply answers it.
type RegisterReply struct {
	HeartbeatMs int64 `json:"heartbeat_ms"` // wanted time between two heartbeats
	// Holder is the epoch of another process that is the member, where one is that
	// was not named: nothing has changed then.
	Holder string `json:"holder,omitempty"`
}

// Process is the body of PathHeartbeat and PathLeave.
type Process struct {
	Epoch string `json:"epoch"`
}

// Codes of the cloud's refusals.
const (
	CodeReplaced  = "instance_replaced"
	CodeNotMember = "not_member"
)

// ErrEnded says that the certificate has ended and was not renewed: a process that
// starts now joins anew.
var ErrEnded = errors.New("the worker's certificate has ended")

// Refusals that a caller may tell apart.
var (
	ErrReplaced  = fmt.Errorf("%w: a newer process of this worker has registered: two of them share one name and folder", enroll.ErrRefused)
	ErrNotMember = fmt.Errorf("%w: it does not know this worker any more", enroll.ErrRefused)
)
