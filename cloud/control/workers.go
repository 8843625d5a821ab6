package control

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/member"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// workerRoutes are the calls of workers that join by themselves: package member.
func (c *Control) workerRoutes(r gin.IRouter) {
	for path, serve := range map[string]func(*gin.Context) (any, error){
		member.PathJoin: c.admitWorker, member.PathRenew: c.renewWorker, member.PathRegister: c.registerWorker,
		member.PathHeartbeat: c.hearWorker, member.PathLeave: c.dismissWorker,
	} {
		r.POST(path, func(g *gin.Context) {
			v, err := serve(g)
			if err != nil {
				c.fail(g, workerError(err))
				return
			}
			noStore(g)
			reply(g, http.StatusOK, v)
		})
	}
}

// workerLife is how long a worker's certificate is valid. It renews itself.
const workerLife = 30 * 24 * time.Hour

// heartbeat is the wanted time between two heartbeats of a worker.
const heartbeat = 2 * time.Second

func (c *Control) admitWorker(g *gin.Context) (any, error) {
	if g.Request.TLS == nil {
		return nil, forbidden("tls_required", "workers join over TLS: use the cloud's https address")
	}
	var req member.JoinRequest
	if err := decode(g, &req); err != nil {
		return nil, err
	}
	token, err := tenants.ParseJoinToken(req.Token)
	if err != nil {
		return nil, badValue("token", "a worker token looks like wj1.<id>.<secret>.<CA pin>")
	}
	key, err := pki.HashCSR([]byte(req.CSR))
	if err != nil {
		return nil, badValue("csr", "%s", err)
	}
	hosts, err := c.workerHosts(g, req.Host)
	switch {
	case err != nil:
		return nil, err
	case !pki.ValidName(req.Name):
		return nil, badValue("name", "want 1 to 63 of a-z A-Z 0-9 . _ -")
	case c.listed(req.Name):
		return nil, nameListed(req.Name)
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), joinTimeout)
	defer cancel()
	out := member.JoinReply{CA: string(c.auth.CertPEM())}
	err = c.store.AdmitWorker(ctx, store.WorkerJoin{Token: token, Name: req.Name, Key: key, CertLife: c.o.WorkerLife}, func() (err error) {
		out.Certificate, err = c.signWorker(req.CSR, req.Name, hosts)
		return err
	})
	if err == nil {
		c.o.Log.Info("worker joined", "instance", req.Name, "host", req.Host, "token", token.ID)
	}
	return out, err
}

func (c *Control) signWorker(csr, name string, hosts []string) (string, error) {
	cert, err := c.auth.SignCSR([]byte(csr), pki.Spec{Peer: pki.Peer{Role: pki.RoleWorker, Name: name}, Hosts: hosts, Life: c.o.WorkerLife})
	return string(cert), err
}

// workerHosts are the hosts that a worker's certificate will bear. A worker
// cannot have the cloud's own names, and this machine's only from here.
func (c *Control) workerHosts(g *gin.Context, host string) ([]string, error) {
	host = plainHost(host)
	ip := net.ParseIP(host)
	switch {
	case loopback.Host(host):
		if !loopback.Host(g.Request.RemoteAddr) {
			return nil, badValue("host", "%s means this machine: give the worker an --advertise-host that others reach", host)
		}
		return pki.LoopbackHosts(), nil
	case ip == nil && !pki.ValidDNSName(host), ip != nil && ip.IsUnspecified():
		return nil, badValue("host", "want a DNS name or an IP address, not %.100q", host)
	case slices.ContainsFunc(c.o.Names, func(own string) bool { return plainHost(own) == host }):
		return nil, badValue("host", "%s is the cloud's own name", host)
	}
	return []string{host}, nil
}

// plainHost is the one spelling of a DNS name or an IP address.
func plainHost(host string) string {
	if ip := net.ParseIP(host); ip != nil {
		return ip.String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// listed reports whether the operator's list has the name.
func (c *Control) listed(name string) bool {
	return c.instances != nil && slices.ContainsFunc(c.instances.Status(), func(s pool.Status) bool { return s.Name == name && s.From == pool.FromStatic })
}

func nameListed(name string) error {
	return conflict("name_configured", "cloud.instances of this gateway lists an instance "+name+", and the list wins: give the worker another --name")
}

// caller is who holds a worker's certificate.
type caller struct {
	name string
	key  tenants.Hash
	cert *x509.Certificate
}

func workerOf(g *gin.Context) (caller, error) {
	peer, err := pki.PeerOf(g.Request.TLS)
	switch {
	case errors.Is(err, pki.ErrNoCertificate):
		return caller{}, &openai.Error{Status: http.StatusUnauthorized, Type: openai.TypeAuthentication, Code: "certificate_required",
			NoRetry: true, Message: "this path is for workers: a client certificate is needed, over TLS"}
	case err != nil || peer.Role != pki.RoleWorker:
		return caller{}, forbidden("bad_certificate", "the client certificate is not a worker's")
	}
	cert := g.Request.TLS.VerifiedChains[0][0]
	return caller{peer.Name, sha256.Sum256(cert.RawSubjectPublicKeyInfo), cert}, nil
}

// workerCall reads who calls and what.
func workerCall(g *gin.Context, in any) (caller, error) {
	who, err := workerOf(g)
	if err == nil {
		err = decode(g, in)
	}
	return who, err
}

func (c *Control) renewWorker(g *gin.Context) (any, error) {
	var req member.RenewRequest
	who, err := workerCall(g, &req)
	if err != nil {
		return nil, err
	}
	if key, err := pki.HashCSR([]byte(req.CSR)); err != nil || key != who.key {
		return nil, badValue("csr", "want a request for the key of the certificate")
	}
	hosts := slices.Clone(who.cert.DNSNames)
	for _, ip := range who.cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), callTimeout)
	defer cancel()
	if err := c.store.InstanceRenewed(ctx, who.name, who.key, c.o.WorkerLife); err != nil {
		return nil, err
	}
	cert, err := c.signWorker(req.CSR, who.name, hosts)
	return member.JoinReply{Certificate: cert}, err
}

func (c *Control) registerWorker(g *gin.Context) (any, error) {
	var req member.Registration
	who, err := workerCall(g, &req)
	if err != nil {
		return nil, err
	}
	if err := c.checkRegistration(g, who, &req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), callTimeout)
	defer cancel()
	err = c.store.RegisterInstance(ctx, store.Registration{Name: who.name, Key: who.key, URL: req.URL, KV: req.KV, Role: req.Role, Model: req.Model,
		Fingerprint: req.Fingerprint, Epoch: req.Epoch, Replaces: req.Replaces})
	if held := (*store.HeldError)(nil); errors.As(err, &held) {
		return member.RegisterReply{Holder: held.Epoch}, nil
	}
	if err == nil {
		c.o.Log.Info("worker registered", "instance", who.name, "url", req.URL, "role", req.Role, "model", req.Model, "epoch", req.Epoch)
	}
	return member.RegisterReply{HeartbeatMs: c.o.Heartbeat.Milliseconds()}, err
}

// checkRegistration lets a worker speak for the hosts of its certificate only.
func (c *Control) checkRegistration(g *gin.Context, who caller, r *member.Registration) error {
	u, err := url.Parse(r.URL)
	if err != nil || len(r.URL) > 300 || u.Port() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" {
		return badValue("url", "want https://host:port")
	}
	switch {
	case u.Scheme == "http" && !(loopback.Host(u.Host) && loopback.Host(g.Request.RemoteAddr)):
		return badValue("url", "without TLS only on the gateway's own machine")
	case u.Scheme != "http" && u.Scheme != "https":
		return badValue("url", "want https://host:port")
	case who.cert.VerifyHostname(u.Hostname()) != nil:
		return badValue("url", "the worker's certificate is not for %.100s: it joined with another --advertise-host; remove its data_dir and join again", u.Hostname())
	case !route.Role(r.Role).Valid():
		return badValue("role", "want mixed, prefill or decode")
	case !slices.Contains(c.o.Pools, r.Model):
		return badValue("model", "no pool of this cloud serves %.80q: add it to cloud.pools, or set the worker's --served-model-name", r.Model)
	case r.Epoch == "" || len(r.Epoch) > 128 || !printable(r.Epoch):
		return badValue("epoch", "want 1 to 128 printable characters")
	case r.Replaces != nil && (len(*r.Replaces) > 128 || !printable(*r.Replaces)):
		return badValue("replaces", "want at most 128 printable characters")
	case len(r.Fingerprint) > 512 || !printable(r.Fingerprint):
		return badValue("fingerprint", "want at most 512 printable characters")
	case c.listed(who.name):
		return nameListed(who.name)
	}
	if r.KV == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(r.KV)
	if err != nil || len(r.KV) > 300 || !isPort(port) || who.cert.VerifyHostname(host) != nil {
		return badValue("kv", "want host:port, of the certificate's host")
	}
	return nil
}

// isPort reports whether s is the number of a port that one can listen on.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func (c *Control) hearWorker(g *gin.Context) (any, error) {
	return c.noteWorker(g, c.store.InstanceSeen)
}

func (c *Control) dismissWorker(g *gin.Context) (any, error) {
	return c.noteWorker(g, c.store.InstanceLeft)
}

func (c *Control) noteWorker(g *gin.Context, note func(ctx context.Context, name string, key tenants.Hash, epoch string) error) (any, error) {
	var req member.Process
	who, err := workerCall(g, &req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), callTimeout)
	defer cancel()
	return struct{}{}, note(ctx, who.name, who.key, req.Epoch)
}

// workerError says what a worker may know of err.
func workerError(err error) error {
	switch {
	case errors.Is(err, store.ErrNameTaken):
		return conflict("name_taken", "another worker has this name and was heard of in the last two minutes: give this one another --name, "+
			"or stop that one, or 'weir pools forget' it")
	case errors.Is(err, store.ErrReplaced):
		return conflict(member.CodeReplaced, store.ErrReplaced.Error())
	case errors.Is(err, store.ErrNotMember):
		return forbidden(member.CodeNotMember, "the name does not belong to this worker's key: it was removed, or another worker has joined under it")
	case errors.Is(err, store.ErrTokenUsed):
		return conflict("join_token_used", "the worker token has let in as many workers as it may")
	}
	return joinError(err)
}
