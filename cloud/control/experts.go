package control

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/store"
)

// Instances are the model servers that this gateway knows; *pool.Pool.
type Instances interface {
	Status() []pool.Status
	// SetJoined gives the workers that have joined: see pool.Pool.
	SetJoined([]pool.Joined)
	// Call asks an instance's own REST: see pool.Pool.
	Call(ctx context.Context, name, method, path string, in, out any) error
}

// Attach gives the control plane the instances to tell of, and adds those that
// had joined when this gateway last knew. It is called once, before the API
// serves and before Run.
func (c *Control) Attach(i Instances) {
	c.instances = i
	c.loadMembers()
}

// expertsPath is a worker's REST of its experts.
const expertsPath = "/instance/v1/experts"

// instanceExperts is one instance with its experts.
type instanceExperts struct {
	Instance string       `json:"instance"`
	Model    string       `json:"model"`
	Role     string       `json:"role"`
	Problem  string       `json:"problem,omitempty" doc:"why nothing is known of its experts"`
	Experts  *expertsView `json:"experts,omitempty" doc:"absent where an instance balances no experts"`
}

// expertsView is what an instance tells of its experts, under a name of its own
// in the API's description.
type expertsView moe.Status

// rebalanced is what an instance answered to a call to move experts.
type rebalanced struct {
	Instance  string             `json:"instance"`
	Decision  rebalance.Decision `json:"decision"`
	Placement [][]int            `json:"placement,omitempty" doc:"expert in each slot, by layer, where something is to move"`
	Error     string             `json:"error,omitempty" doc:"why a move failed; the old placement is in force then"`
}

func (c *Control) expertRoutes() []adminRoute {
	order := func(verb, id, summary string) adminRoute {
		return change(http.MethodPost, "/experts/:id/"+verb, platform, id, summary,
			func(a *adminCall, _ none) (rebalanced, *store.Change, error) { return c.orderExperts(a, verb) })
	}
	return []adminRoute{
		view("/experts", platform, "listExperts", "Show where the experts of each instance are, what is asked of them and what was decided lately.", nil,
			func(a *adminCall) (list[instanceExperts], error) { return c.listExperts(a.ctx), nil }),
		order("rebalance", "rebalanceExperts", "Let an instance move experts now, by its latest window of load."),
		order("plan", "planExperts", "Show what a rebalance of an instance would do now."),
	}
}

// listExperts asks all instances at once; one that does not answer is told of.
func (c *Control) listExperts(ctx context.Context) list[instanceExperts] {
	l := list[instanceExperts]{Object: "list", Data: []instanceExperts{}}
	if c.instances == nil {
		return l
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var wg sync.WaitGroup
	all := c.instances.Status()
	l.Data = make([]instanceExperts, len(all))
	for i, s := range all {
		wg.Go(func() {
			l.Data[i] = instanceExperts{Instance: s.Name, Model: s.Model, Role: string(s.Role)}
			var e expertsView
			if err := c.instances.Call(ctx, s.Name, http.MethodGet, expertsPath, nil, &e); err != nil {
				l.Data[i].Problem = openai.AsError(err).Message
				return
			}
			l.Data[i].Experts = &e
		})
	}
	wg.Wait()
	return l
}

func (c *Control) orderExperts(a *adminCall, verb string) (out rebalanced, ch *store.Change, err error) {
	if c.instances == nil {
		return out, nil, store.ErrNotFound
	}
	name := a.Param("id")
	err = c.instances.Call(a.ctx, name, http.MethodPost, expertsPath, map[string]string{"action": verb}, &out)
	if errors.Is(err, pool.ErrUnknown) {
		return out, nil, store.ErrNotFound
	}
	out.Instance = name
	return out, &store.Change{Action: "experts." + verb, Kind: "instance", ObjectID: name, After: out.Decision}, err
}
