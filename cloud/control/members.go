package control

import (
	"context"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
)

// followMembers gives this gateway's pool the workers that have joined. While
// the database is away the pool goes on with those that it knows.
func (c *Control) followMembers(ctx context.Context) error {
	if c.instances == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	members, err := c.store.Members(ctx)
	if err != nil {
		return err
	}
	list := make([]pool.Joined, len(members))
	for i, m := range members {
		list[i] = pool.Joined{Epoch: m.Epoch, Silent: m.Silent,
			Member: pool.Member{Name: m.Name, URL: m.URL, Role: route.Role(m.Role), Model: m.Model}}
	}
	c.instances.SetJoined(list)
	return nil
}
