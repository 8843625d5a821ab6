package control

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/store"
)

// poolRole and poolDrain are the orders that a Weir worker takes while it runs.
type (
	poolRole struct {
		Role string `json:"role" need:"true" enum:"mixed,prefill,decode" example:"mixed"`
	}
	poolDrain struct {
		Draining bool `json:"draining" need:"true" example:"true" doc:"false takes it back"`
	}
	// poolDrained is what the worker answers.
	poolDrained struct {
		Instance string `json:"instance"`
		Draining bool   `json:"draining"`
		Requests int    `json:"requests" doc:"still running there"`
	}
	poolChanged struct {
		Instance string `json:"instance"`
		Role     string `json:"role"`
	}
)

func (c *Control) poolRoutes() []adminRoute {
	return []adminRoute{
		view("/pools", platform, "listPools", "Show the instances as this gateway knows them: load, health, age of knowledge.", nil,
			func(*adminCall) (list[pool.Status], error) { return c.listPools(), nil }),
		change(http.MethodPost, "/pools/:id/role", platform, "setPoolRole", "Change the role of a Weir worker while it runs.",
			func(a *adminCall, n poolRole) (out poolChanged, ch *store.Change, err error) {
				switch n.Role {
				case "mixed", "prefill", "decode":
				default:
					return out, nil, openai.BadRequest("role", openai.CodeInvalidValue, "role: want mixed, prefill or decode")
				}
				if n.Role == string(route.Prefill) {
					if err := c.leavesDecoders(a.Param("id")); err != nil {
						return out, nil, err
					}
				}
				ch, err = c.orderInstance(a, "role", n, &out)
				out.Instance = a.Param("id")
				return out, ch, err
			}),
		change(http.MethodPost, "/pools/:id/drain", platform, "drainPool", "Let a Weir worker finish what it has and take nothing new, or take that back.",
			func(a *adminCall, n poolDrain) (out poolDrained, ch *store.Change, err error) {
				ch, err = c.orderInstance(a, "drain", n, &out)
				out.Instance = a.Param("id")
				return out, ch, err
			}),
	}
}

func (c *Control) listPools() list[pool.Status] {
	l := list[pool.Status]{Object: "list", Data: []pool.Status{}}
	if c.instances != nil {
		l.Data = c.instances.Status()
	}
	return l
}

// leavesDecoders refuses to make the last instance of a pool that decodes and is
// ready a prefill instance: the pool would answer nobody. cloud/roles keeps to the
// same.
func (c *Control) leavesDecoders(name string) error {
	if c.instances == nil {
		return nil
	}
	all := c.instances.Status()
	i := slices.IndexFunc(all, func(s pool.Status) bool { return s.Name == name })
	if i < 0 || all[i].Role == route.Prefill {
		return nil
	}
	if slices.ContainsFunc(all, func(s pool.Status) bool {
		return s.Name != name && s.Model == all[i].Model && s.Role != route.Prefill && s.Ready && !s.Leaving
	}) {
		return nil
	}
	return conflict("last_decoder", fmt.Sprintf("no other instance of model %s decodes and is ready: the pool would answer nobody; let another one decode first", all[i].Model))
}

// orderInstance passes an order on to the instance that the path names.
func (c *Control) orderInstance(a *adminCall, verb string, in, out any) (*store.Change, error) {
	if c.instances == nil {
		return nil, store.ErrNotFound
	}
	name := a.Param("id")
	err := c.instances.Call(a.ctx, name, http.MethodPost, "/instance/v1/"+verb, in, out)
	if errors.Is(err, pool.ErrUnknown) {
		return nil, &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "not_found", NoRetry: true, Message: fmt.Sprintf("there is no instance %q", name)}
	}
	return &store.Change{Action: "pool." + verb, Kind: "instance", ObjectID: name, After: in}, err
}
