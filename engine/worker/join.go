package worker

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/weirhq/weir/engine/worker/api"
	"github.com/weirhq/weir/engine/worker/member"
	"github.com/weirhq/weir/internal/enroll"
	"github.com/weirhq/weir/tenants"
)

// join makes the worker a member of a cloud's pools and shows the certificate
// that it has for that.
func (w *instance) join(ctx context.Context) error {
	c := &w.o.Config
	host, _ := w.advertised()
	m, err := member.Join(ctx, member.Options{Clouds: c.Join, Dir: filepath.Join(c.DataDir, "identity"), Name: w.id.Name, Host: host, Log: w.log,
		Token: c.joinToken})
	if err != nil {
		return err
	}
	w.member = m
	w.show(m.Holder(), m.Trust())
	return nil
}

func (c *Config) joinToken() (tenants.JoinToken, error) {
	if c.JoinToken == "" && c.JoinTokenFile == "" {
		return tenants.JoinToken{}, errors.New("this worker has no certificate yet: give join_token_file or WEIR_WORKER_JOIN_TOKEN ('weir worker-tokens create' mints a token)")
	}
	return enroll.ReadToken(c.JoinToken, c.JoinTokenFile)
}

// advertised is where gateways and other workers reach this one.
func (w *instance) advertised() (host string, port int) {
	addr := w.tcp.Addr().(*net.TCPAddr)
	if w.o.Config.AdvertiseHost != "" {
		return w.o.Config.AdvertiseHost, addr.Port
	}
	return addr.IP.String(), addr.Port
}

// stayMember keeps the membership, if there is one, until the function that it
// returns is called. The context ends when the cloud ends the membership, and
// then the function returns why.
func (w *instance) stayMember(ctx context.Context) (context.Context, func() error) {
	if w.member == nil {
		return ctx, func() error { return nil }
	}
	ctx, drain := context.WithCancel(ctx)
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() {
		ended <- w.member.Run(own)
		drain()
	}()
	return ctx, func() error {
		w.leave()() // also where no model was there to drain
		stop()
		err := <-ended
		drain()
		w.member.Close()
		return err
	}
}

// register tells the cloud of the process that serves m.
func (w *instance) register(m *api.Model) {
	if w.member == nil {
		return
	}
	host, port := w.advertised()
	addr, scheme := net.JoinHostPort(host, strconv.Itoa(port)), "http"
	if w.trust.http != nil {
		scheme = "https"
	}
	w.member.Tell(member.Registration{URL: scheme + "://" + addr, KV: addr, Role: w.id.Role, Model: m.Info.Name,
		Fingerprint: m.Info.Fingerprint.String(), Epoch: w.id.Epoch})
}

// leaveTimeout bounds how long the cloud may take to note that a worker leaves.
const leaveTimeout = 3 * time.Second

// leave tells the cloud that this process takes nothing new. It does not wait;
// the function that it returns does.
func (w *instance) leave() (wait func()) {
	if w.member == nil {
		return func() {}
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		w.member.Leave(ctx)
	}()
	return func() { <-told }
}
