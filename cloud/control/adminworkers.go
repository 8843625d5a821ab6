package control

import (
	"errors"
	"net/http"

	"github.com/weirhq/weir/tenants/store"
)

// shownWorkerToken is a worker token with its secret, shown once.
type shownWorkerToken struct {
	store.WorkerToken
	Text string `json:"token" doc:"shown once"`
}

// memberRoutes are for operators: who may join, and who has.
func (c *Control) memberRoutes() []adminRoute {
	return []adminRoute{
		view("/worker-tokens", platform, "listWorkerTokens", "List worker tokens, oldest first.", ofPlatform, pages(
			func(a *adminCall, _ string, p store.Page) ([]store.WorkerToken, error) {
				return a.tx.WorkerTokens(a.ctx, p)
			},
			func(t store.WorkerToken) string { return t.ID })),
		create("/worker-tokens", platform, "createWorkerToken", "Add a token with which workers join the pools by themselves.", c.createWorkerToken),
		view("/worker-tokens/:id", platform, "getWorkerToken", "Show a worker token.", nil, func(a *adminCall) (store.WorkerToken, error) {
			return a.tx.WorkerTokenByID(a.ctx, a.Param("id"))
		}),
		change(http.MethodPost, "/worker-tokens/:id/revoke", platform, "revokeWorkerToken", "End a worker token. Workers that joined with it stay.",
			func(a *adminCall, _ none) (store.WorkerToken, *store.Change, error) {
				before, err := a.tx.WorkerTokenByID(a.ctx, a.Param("id"))
				if err != nil {
					return before, nil, err
				}
				t, err := a.tx.RevokeWorkerToken(a.ctx, before.ID)
				return t, &store.Change{Action: "worker_token.revoke", Kind: "worker_token", ObjectID: t.ID, Before: before, After: t}, err
			}),
		view("/instances", platform, "listInstances", "List the workers that have joined, by name.", ofPlatform, pages(
			func(a *adminCall, _ string, p store.Page) ([]store.Instance, error) { return a.tx.Instances(a.ctx, p) },
			func(i store.Instance) string { return i.Name })),
		view("/instances/:id", platform, "getInstance", "Show a worker that has joined.", nil, func(a *adminCall) (store.Instance, error) {
			return a.tx.InstanceByName(a.ctx, a.Param("id"))
		}),
		change(http.MethodDelete, "/instances/:id", platform, "forgetInstance", "Take a worker out of the pools for good. Its certificate opens nothing here any more.",
			func(a *adminCall, _ none) (deleted, *store.Change, error) {
				before, err := a.tx.InstanceByName(a.ctx, a.Param("id"))
				if errors.Is(err, store.ErrNotFound) && c.listed(a.Param("id")) {
					return deleted{}, nil, conflict("instance_configured", "cloud.instances lists the instance: take it out of the configuration and start the gateway anew")
				}
				if err != nil {
					return deleted{}, nil, err
				}
				err = a.tx.ForgetInstance(a.ctx, before.Name)
				return deleted{before.Name, true}, &store.Change{Action: "instance.forget", Kind: "instance", ObjectID: before.Name, Before: before}, err
			}),
	}
}

func (c *Control) createWorkerToken(a *adminCall, n store.NewWorkerToken) (shownWorkerToken, *store.Change, error) {
	t, secret, err := a.tx.CreateWorkerToken(a.ctx, n, c.auth.Pin())
	ch := &store.Change{Action: "worker_token.create", Kind: "worker_token", ObjectID: t.ID, After: t}
	return shownWorkerToken{t, secret.Reveal()}, ch, err
}
