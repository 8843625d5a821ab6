package control

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/pki"
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
	c.keepMembers(list)
	return nil
}

// keptMembersFile is the list of the last run, for a start without the database.
// It is signed: whoever can write files here must not be able to add an instance.
const keptMembersFile = "members.json"

type keptMembers struct {
	Members   []byte `json:"members"` // JSON of []pool.Joined
	Signature []byte `json:"signature"`
}

// membersContext keeps these signatures apart from others of the same key.
const membersContext = "weir members v1\n"

func (c *Control) keptMembersPath() string { return filepath.Join(c.o.DataDir, keptMembersFile) }

// keepMembers writes the list where it has changed.
func (c *Control) keepMembers(list []pool.Joined) {
	plain := make([]pool.Joined, len(list))
	for i, j := range list {
		j.Silent = 0
		plain[i] = j
	}
	data, err := json.Marshal(plain)
	if err != nil || string(data) == c.kept {
		return
	}
	file, err := json.Marshal(keptMembers{data, ed25519.Sign(c.signer, append([]byte(membersContext), data...))})
	if err == nil {
		err = pki.WriteSecret(c.keptMembersPath(), file)
	}
	if err != nil {
		c.o.Log.Error("the list of instances is not kept on disk", "error", err)
		return
	}
	c.kept = string(data)
}

// loadMembers gives the pool the list of the last run.
func (c *Control) loadMembers() {
	file, err := os.ReadFile(c.keptMembersPath())
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var list []pool.Joined
	if err == nil {
		list, err = c.readMembers(file)
	}
	if err != nil {
		c.o.Log.Warn("the kept list of instances is not usable, waiting for the database", "path", c.keptMembersPath(), "error", err)
		return
	}
	c.instances.SetJoined(list)
}

func (c *Control) readMembers(file []byte) (list []pool.Joined, err error) {
	var k keptMembers
	if err := json.Unmarshal(file, &k); err != nil {
		return nil, err
	}
	pub, _ := c.signer.Public().(ed25519.PublicKey)
	if !ed25519.Verify(pub, append([]byte(membersContext), k.Members...), k.Signature) {
		return nil, errors.New("its signature is not this cloud's")
	}
	return list, json.Unmarshal(k.Members, &list)
}
