package member

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/internal/enroll"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

// Options say who joins what.
type Options struct {
	Clouds []string // addresses of the gateways of one cloud, https://host:port
	Dir    string   // of the worker's key and certificate
	Name   string   // of the instance
	Host   string   // under which gateways and workers reach it
	// Token is asked for the join token when the worker has no certificate.
	Token func() (tenants.JoinToken, error)
	Log   *slog.Logger
}

// Times of a membership.
const (
	firstWait = 250 * time.Millisecond // after a failure; doubled up to mostWait
	mostWait  = 5 * time.Second
	// leastBeat and mostBeat bound what a cloud may ask for.
	leastBeat = 100 * time.Millisecond
	mostBeat  = time.Minute
	renewWait = time.Minute // after a renewal that failed
)

// Member is a worker that has joined.
type Member struct {
	o      Options
	id     identity
	own    string // this process, in its folder
	epoch  string // under which it has registered; of Run
	clouds []*url.URL
	first  atomic.Int32 // of clouds, the one that answered last
	holder *holder
	trust  *x509.CertPool
	http   *http.Client
	news   chan Registration // what Run has not told yet
	leave  chan struct{}     // one slot: Leave was called
	left   chan struct{}     // closed when Run has told so, or has ended
}

// Join returns the worker's membership, joining first if it has no certificate.
// A cloud that does not answer is tried again until ctx ends; a refusal is final.
func Join(ctx context.Context, o Options) (*Member, error) {
	m := &Member{o: o, id: identity{o.Dir}, own: rand.Text(), news: make(chan Registration, 1),
		leave: make(chan struct{}, 1), left: make(chan struct{})}
	for _, text := range o.Clouds {
		base, err := enroll.Base(text)
		if err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}
		m.clouds = append(m.clouds, base)
	}
	err := m.id.begin(m.own)
	if err == nil {
		err = m.load()
	}
	if errors.Is(err, errNone) {
		if err = m.join(ctx); err == nil {
			err = m.load()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	m.http = enroll.Client(pki.ClientConfig(m.holder, m.trust, pki.RoleGateway))
	return m, nil
}

func (m *Member) load() (err error) {
	m.holder, m.trust, err = m.id.load(m.o.Name)
	return err
}

// Holder shows the worker's certificate.
func (m *Member) Holder() pki.Holder { return m.holder }

// Trust holds the cloud's authority.
func (m *Member) Trust() *x509.CertPool { return m.trust }

func (m *Member) join(ctx context.Context) error {
	token, err := m.o.Token()
	if err != nil {
		return err
	}
	key, err := m.id.key()
	if err != nil {
		return err
	}
	csr, err := pki.CSR(key)
	if err != nil {
		return err
	}
	req := JoinRequest{Token: token.Reveal(), CSR: string(csr), Name: m.o.Name, Host: m.o.Host}
	wait := firstWait
	for {
		var reply JoinReply
		err := m.ask(func(base *url.URL) error { return enroll.Join(ctx, base, token.Pin, PathJoin, req, &reply) })
		if err == nil {
			if err = enroll.CheckCA(reply.CA, token.Pin); err != nil {
				return err
			}
			m.o.Log.Info("joined the cloud", "name", m.o.Name)
			return m.id.save(&reply)
		}
		if ctx.Err() != nil || !enroll.Temporary(err) {
			return err
		}
		m.o.Log.Warn("joining failed, will try again", "in", wait, "error", err)
		if !sleep(ctx, wait) {
			return err
		}
		wait = min(2*wait, mostWait)
	}
}

// ask calls one gateway after another until one answers.
func (m *Member) ask(call func(*url.URL) error) (err error) {
	first := int(m.first.Load())
	for i := range m.clouds {
		at := (first + i) % len(m.clouds)
		if err = call(m.clouds[at]); err == nil || errors.Is(err, enroll.ErrRefused) {
			m.first.Store(int32(at))
			return err
		}
	}
	return err
}

// Tell has Run register the process, in place of what it was told before.
func (m *Member) Tell(r Registration) {
	select {
	case <-m.news:
	default:
	}
	m.news <- r
}

// Run keeps the membership until ctx ends: it registers what Tell says, sends
// heartbeats and renews the certificate. The cloud may be away for as long as the
// certificate is valid. The error is ErrEnded or the cloud's refusal: ErrReplaced,
// ErrNotMember or another.
func (m *Member) Run(ctx context.Context) error {
	gone := sync.OnceFunc(func() { close(m.left) })
	defer gone()
	var p process
	news := m.news
	next, renew := time.NewTimer(mostBeat), time.NewTimer(time.Until(m.holder.renewAt()))
	defer next.Stop()
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-renew.C:
			wait, err := m.renew(ctx)
			if err != nil {
				return err
			}
			renew.Reset(wait)
			continue
		case <-m.leave:
			news = nil // nothing is registered any more
			m.depart(ctx, &p)
			gone()
			continue
		case r := <-news:
			p = process{told: &r, beat: mostBeat, wait: firstWait}
		case <-next.C:
		}
		if p.told == nil {
			next.Reset(mostBeat)
			continue
		}
		err := m.say(ctx, &p)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, enroll.ErrRefused) {
			return err
		}
		next.Reset(p.heard(err, m.o.Log))
	}
}

// process is what the cloud knows of one process.
type process struct {
	told       *Registration
	registered bool
	failing    bool
	beat, wait time.Duration
}

// say registers the process, and then sends heartbeats: another one of the same
// name may have registered since, and has precedence.
func (m *Member) say(ctx context.Context, p *process) error {
	if p.registered {
		return m.post(ctx, PathHeartbeat, Process{p.told.Epoch}, &struct{}{})
	}
	reply, err := m.register(ctx, *p.told)
	if err != nil {
		return err
	}
	m.epoch = p.told.Epoch
	p.registered, p.beat = true, min(max(time.Duration(reply.HeartbeatMs)*time.Millisecond, leastBeat), mostBeat)
	return nil
}

// register takes the membership over from whoever has it, unless that is a newer
// process: it has written its name into the folder before it registered, so a look
// there after the cloud has told who is the member tells old from new. Should a
// newer one register between that look and the next call, the cloud finds that its
// predecessor was named and not it.
func (m *Member) register(ctx context.Context, r Registration) (reply RegisterReply, err error) {
	old := m.epoch // itself, after its model was loaded anew
	for {
		r.Replaces = &old
		reply = RegisterReply{}
		if err := m.post(ctx, PathRegister, &r, &reply); err != nil || reply.Holder == "" {
			return reply, err
		}
		newest, err := m.id.newest(m.own)
		switch {
		case err != nil:
			return reply, err
		case !newest:
			return reply, ErrReplaced
		}
		old = reply.Holder
	}
}

// heard notes how a call ended and returns the time until the next one.
func (p *process) heard(err error, log *slog.Logger) time.Duration {
	switch {
	case err == nil:
		if p.failing {
			log.Info("the cloud hears of this worker again")
		}
		p.failing, p.wait = false, firstWait
		return p.beat
	case !p.failing:
		log.Warn("the cloud does not hear of this worker, will try again", "error", err)
	}
	p.failing = true
	wait := p.wait
	p.wait = min(2*p.wait, mostWait)
	return wait
}

// Leave has Run tell the cloud that the process leaves, after what it is telling
// now, and register nothing any more. It waits for that until ctx ends. Run goes
// on with heartbeats, which keep the worker's name.
func (m *Member) Leave(ctx context.Context) {
	select {
	case m.leave <- struct{}{}:
	default:
	}
	select {
	case <-m.left:
	case <-ctx.Done():
	}
}

// depart tells the cloud that the process leaves, if it may know of it.
func (m *Member) depart(ctx context.Context, p *process) {
	if p.told == nil {
		return
	}
	err := m.post(ctx, PathLeave, Process{p.told.Epoch}, &struct{}{})
	if !p.registered { // as far as is known: no heartbeat can be for it
		p.told = nil
	}
	if err != nil && !errors.Is(err, enroll.ErrRefused) {
		m.o.Log.Warn("the cloud was not told that this worker leaves: it will notice", "error", err)
	}
}

// Close frees the connections to the cloud.
func (m *Member) Close() { m.http.CloseIdleConnections() }

// renew gets a new certificate and returns when the next one is due. The error is
// ErrEnded.
func (m *Member) renew(ctx context.Context) (time.Duration, error) {
	err := m.renewOnce(ctx)
	end := m.holder.now.Load().Leaf.NotAfter
	switch left := time.Until(end); {
	case err == nil:
		m.o.Log.Info("certificate renewed", "not_after", end)
		return time.Until(m.holder.renewAt()), nil
	case left <= 0:
		return 0, fmt.Errorf("%w: %w", ErrEnded, err)
	default:
		m.o.Log.Warn("the certificate was not renewed, will try again", "not_after", end, "error", err)
		return min(renewWait, left), nil
	}
}

func (m *Member) renewOnce(ctx context.Context) error {
	key, err := m.id.key()
	if err != nil {
		return err
	}
	csr, err := pki.CSR(key)
	if err != nil {
		return err
	}
	var reply JoinReply
	if err := m.post(ctx, PathRenew, RenewRequest{string(csr)}, &reply); err != nil {
		return err
	}
	next, err := pki.ParseStatic([]byte(reply.Certificate), key)
	if err != nil {
		return err
	}
	if err := m.id.save(&reply); err != nil {
		return err
	}
	m.holder.now.Store((*tls.Certificate)(next))
	m.http.CloseIdleConnections()
	return nil
}

// post calls the cloud with the worker's certificate.
func (m *Member) post(ctx context.Context, path string, in, out any) error {
	err := m.ask(func(base *url.URL) error { return enroll.Post(ctx, m.http, base, path, in, out) })
	var told *openai.Error
	if errors.As(err, &told) {
		switch told.Code {
		case CodeReplaced:
			return ErrReplaced
		case CodeNotMember:
			return fmt.Errorf("%w: remove %s and join with a new token", ErrNotMember, m.o.Dir)
		}
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
