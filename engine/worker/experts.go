package worker

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/worker/api"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/internal/openai"
)

// balanced is a runner that can tell where its experts are and move them.
type balanced interface {
	Experts() moe.Status
	Rebalance(context.Context) (rebalance.Decision, error)
	Propose(context.Context) (rebalance.Decision, error)
}

// experts serves /instance/v1/experts. GET gives ExpertsView; POST takes
// ExpertsOrder and gives ExpertsAnswer. A runner without experts answers 404
// with code no_experts.
type experts struct{ now atomic.Pointer[asked] } // nil while loading

// asked is what the handler answers from.
type asked struct {
	id     api.Identity
	model  string
	runner balanced // nil: no experts
}

// ExpertsView is the answer to GET /instance/v1/experts.
type ExpertsView struct {
	Name  string `json:"name"`
	Epoch string `json:"epoch"`
	Role  string `json:"role"`
	Model string `json:"model"`
	moe.Status
}

// ExpertsOrder is the body of POST /instance/v1/experts.
type ExpertsOrder struct {
	// Action is rebalance, to move experts now, or plan, to be told what that
	// would do.
	Action string `json:"action"`
}

// ExpertsAnswer is the answer to an order. A move that failed has an error
// and the reason move_failed; the old placement is in force then.
type ExpertsAnswer struct {
	Decision rebalance.Decision `json:"decision"`
	// Placement is the one that the decision asks for, [layer][slot]; none where
	// it asks for nothing.
	Placement [][]int `json:"placement,omitempty"`
	Error     string  `json:"error,omitempty"`
}

// ready makes the handler answer for a loaded model.
func (e *experts) ready(id api.Identity, r engine.Runner, m *metrics.Set) {
	now := &asked{id: id, model: r.Info().Name}
	if b, ok := r.(balanced); ok && b.Experts().Experts > 0 {
		now.runner = b
		m.Register(expertsCollector{b})
	}
	e.now.Store(now)
}

func (e *experts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v, err := e.answer(r)
	if err != nil {
		openai.AsError(err).Write(w, nil)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func (e *experts) answer(r *http.Request) (any, error) {
	now := e.now.Load()
	if now == nil {
		return nil, openai.Unavailable("worker_loading", 0, "this worker is loading its model")
	}
	b := now.runner
	if b == nil {
		return nil, &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "no_experts", NoRetry: true,
			Message: "this worker balances no experts: its model is dense or its runner is not moe (--runner moe)"}
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return ExpertsView{now.id.Name, now.id.Epoch, now.id.Role, now.model, b.Experts()}, nil
	case http.MethodPost:
		return order(r, b)
	}
	return nil, &openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.TypeInvalidRequest, Code: "method_not_allowed",
		Message: "use GET or POST", NoRetry: true}
}

// maxOrder bounds the body of an order in bytes.
const maxOrder = 4 << 10

func order(r *http.Request, b balanced) (any, error) {
	var o ExpertsOrder
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxOrder))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return nil, invalidOrder("the body is not an object with action: " + err.Error())
	}
	decide := b.Rebalance
	switch o.Action {
	case "rebalance":
	case "plan":
		decide = b.Propose
	default:
		return nil, invalidOrder("action must be rebalance or plan")
	}
	dec, err := decide(r.Context())
	switch {
	case errors.Is(err, moe.ErrFixed):
		return nil, &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: "experts_fixed", NoRetry: true,
			Message: "this worker leaves its experts where they are (experts.fixed)"}
	case err != nil && !errors.Is(err, rebalance.ErrMove):
		return nil, openai.Unavailable("worker_stopping", 0, "%s", err)
	case err != nil:
		return ExpertsAnswer{Decision: dec, Error: err.Error()}, nil
	}
	return ExpertsAnswer{Decision: dec, Placement: dec.Next.Layers}, nil
}

func invalidOrder(message string) error {
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: "invalid_order", Message: message, NoRetry: true}
}
