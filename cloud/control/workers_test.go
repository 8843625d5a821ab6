package control

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/worker/member"
	"github.com/weirhq/weir/internal/enroll"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
)

// workerPlane is a control plane with the pool "big" and a fast heart.
func workerPlane(t *testing.T, adjust func(*Options)) (*plane, *onePool) {
	t.Helper()
	o := options(t, testpg.Start(t))
	o.Pools, o.Names, o.Heartbeat = []string{"big"}, []string{"cloud.example", "10.0.0.1"}, 100*time.Millisecond
	if adjust != nil {
		adjust(&o)
	}
	fleet := &onePool{}
	p := startWith(t, o, fleet)
	p.ready(t)
	return p, fleet
}

func (p *plane) newWorkerToken(t *testing.T, uses int) string {
	t.Helper()
	var made struct{ Token string }
	p.admin(t, http.MethodPost, "worker-tokens", map[string]int{"uses": uses}).into(t, &made)
	return made.Token
}

// joinOptions are those of a worker on this machine.
func (p *plane) joinOptions(name, dir, token string) member.Options {
	return member.Options{Clouds: []string{p.url}, Dir: dir, Name: name, Host: "127.0.0.1", Log: quiet,
		Token: func() (tenants.JoinToken, error) { return enroll.ReadToken(token, "") }}
}

func (p *plane) joinWorker(t *testing.T, name, dir, token string) *member.Member {
	t.Helper()
	m, err := member.Join(t.Context(), p.joinOptions(name, dir, token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// run keeps a membership until the test's end, and returns how to end it.
func run(t *testing.T, m *member.Member) func() error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	var err error
	ended := false
	stop := func() error {
		if !ended {
			cancel()
			err, ended = <-done, true
		}
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func registration(epoch string) member.Registration {
	return member.Registration{URL: "http://127.0.0.1:7424", KV: "127.0.0.1:7424", Role: "decode", Model: "big", Fingerprint: "w:r:k", Epoch: epoch}
}

func (o *onePool) names() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for _, j := range o.joined {
		out = append(out, j.Name+"/"+j.Epoch)
	}
	return strings.Join(out, " ")
}

// TestWorkerFromJoinToLeave over TLS, with the certificate that it got.
func TestWorkerFromJoinToLeave(t *testing.T) {
	p, fleet := workerPlane(t, nil)
	dir := filepath.Join(t.TempDir(), "identity")
	token := p.newWorkerToken(t, 1)
	m := p.joinWorker(t, "w1", dir, token)
	for _, name := range []string{pki.KeyFile, pki.CertFile, pki.CAFile} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	stop := run(t, m)
	m.Tell(registration("e1"))
	eventually(t, "it is a member", func() bool { return fleet.names() == "w1/e1" })
	seen := func() string {
		var i struct {
			SeenAt *string `json:"seen_at"`
		}
		p.admin(t, http.MethodGet, "instances/w1", nil).into(t, &i)
		return *i.SeenAt
	}
	first := seen()
	eventually(t, "a heartbeat", func() bool { return seen() != first })
	m.Tell(registration("e2")) // its model was loaded anew
	eventually(t, "the new epoch is the member", func() bool { return fleet.names() == "w1/e2" })
	m.Leave(t.Context())
	eventually(t, "it has left", func() bool { return fleet.names() == "" })
	if err := stop(); err != nil {
		t.Errorf("its membership ended with %v", err)
	}

	// The folder is enough to come back; the token is used up.
	again := p.joinWorker(t, "w1", dir, "no token needed")
	run(t, again)
	again.Tell(registration("e3"))
	eventually(t, "it is back", func() bool { return fleet.names() == "w1/e3" })
	if _, err := member.Join(t.Context(), p.joinOptions("w2", dir, "")); err == nil || !strings.Contains(err.Error(), "not for worker w2") {
		t.Errorf("another name for its certificate: %v", err)
	}
	if _, err := member.Join(t.Context(), p.joinOptions("w3", t.TempDir(), token)); !errors.Is(err, enroll.ErrRefused) || !strings.Contains(err.Error(), "as many workers") {
		t.Errorf("the token again: %v", err)
	}
}

// TestTwoMachinesOfOneName: the first keeps it while it lives.
func TestTwoMachinesOfOneName(t *testing.T) {
	p, fleet := workerPlane(t, nil)
	token := p.newWorkerToken(t, 2)
	first := p.joinWorker(t, "w", t.TempDir(), token)
	run(t, first)
	first.Tell(registration("e"))
	eventually(t, "it is a member", func() bool { return fleet.names() == "w/e" })
	if _, err := member.Join(t.Context(), p.joinOptions("w", t.TempDir(), token)); !errors.Is(err, enroll.ErrRefused) || !strings.Contains(err.Error(), "--name") {
		t.Errorf("another machine of that name: %v", err)
	}
	if a := p.admin(t, http.MethodDelete, "instances/w", nil); a.status != http.StatusOK {
		t.Fatalf("forget: %s", a)
	}
	p.joinWorker(t, "w", t.TempDir(), token)
}

// TestProcessThatIsOutIsTold by the answer to its heartbeat: when a later one
// with the same folder has registered, and when an operator has removed it.
func TestProcessThatIsOutIsTold(t *testing.T) {
	p, fleet := workerPlane(t, nil)
	dir, token := t.TempDir(), p.newWorkerToken(t, 1)
	process := func(epoch string) (ended chan error) {
		m := p.joinWorker(t, "w", dir, token)
		ended = make(chan error, 1)
		go func() { ended <- m.Run(t.Context()) }()
		m.Tell(registration(epoch))
		eventually(t, "it is the member", func() bool { return fleet.names() == "w/"+epoch })
		return ended
	}
	is := func(ended chan error, want error) {
		t.Helper()
		select {
		case err := <-ended:
			if !errors.Is(err, want) {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it was not told")
		}
	}
	first := process("e1")
	second := process("e2")
	is(first, member.ErrReplaced)
	if a := p.admin(t, http.MethodDelete, "instances/w", nil); a.status != http.StatusOK {
		t.Fatalf("forget: %s", a)
	}
	is(second, member.ErrNotMember)
	eventually(t, "nobody is a member", func() bool { return fleet.names() == "" })
}

// TestOldProcessStaysOut in whatever order the two live processes of one folder
// are started, load their models and are heard: the one that was started last has
// the name, and the other ends.
func TestOldProcessStaysOut(t *testing.T) {
	p, fleet := workerPlane(t, nil)
	for _, order := range []string{"old first", "new first"} {
		t.Run(order, func(t *testing.T) {
			dir, name := t.TempDir(), strings.ReplaceAll(order, " ", "-")
			token := p.newWorkerToken(t, 1)
			old, young := p.joinWorker(t, name, dir, token), p.joinWorker(t, name, dir, token)
			ends, stays := make(chan error, 1), run(t, young)
			is := func(epoch string) {
				t.Helper()
				eventually(t, epoch+" is the member", func() bool { return strings.Contains(fleet.names(), name+"/"+epoch) })
			}
			if order == "old first" {
				old.Tell(registration("old"))
			}
			go func() { ends <- old.Run(t.Context()) }()
			if order == "old first" {
				is("old")
			}
			young.Tell(registration("young"))
			is("young")
			if order != "old first" { // its registration was long on the way
				old.Tell(registration("old"))
			}
			select {
			case err := <-ends:
				if !errors.Is(err, member.ErrReplaced) {
					t.Errorf("the old process ended with %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the old process was not told")
			}
			is("young")
			// One that was started and has not registered takes nothing from the member,
			// which may have loaded its model anew.
			third := p.joinWorker(t, name, dir, token)
			young.Tell(registration("young-again"))
			is("young-again")
			run(t, third)
			third.Tell(registration("third"))
			is("third")
			if err := stays(); !errors.Is(err, member.ErrReplaced) && err != nil {
				t.Errorf("the young process ended with %v", err)
			}
		})
	}
}

// TestWorkerCertificateRenewsItself long before it ends.
func TestWorkerCertificateRenewsItself(t *testing.T) {
	p, _ := workerPlane(t, func(o *Options) { o.WorkerLife = 10 * time.Second })
	dir := t.TempDir()
	m := p.joinWorker(t, "w", dir, p.newWorkerToken(t, 1))
	serial := func() string {
		own, err := pki.LoadStatic(filepath.Join(dir, pki.CertFile), filepath.Join(dir, pki.KeyFile))
		if err != nil {
			t.Fatal(err)
		}
		return own.Leaf.SerialNumber.String()
	}
	first := serial()
	run(t, m)
	eventually(t, "a new certificate on disk", func() bool { return serial() != first })
	eventually(t, "it shows a new certificate", func() bool {
		shown, err := m.Holder().GetCertificate(nil)
		return err == nil && shown.Leaf.SerialNumber.String() != first && shown.Leaf.VerifyHostname("127.0.0.1") == nil
	})
}

// TestWorkerCertificateEnds without a renewal: so does the process, and a start
// joins anew.
func TestWorkerCertificateEnds(t *testing.T) {
	p, _ := workerPlane(t, func(o *Options) { o.WorkerLife = 8 * time.Second })
	dir, token := t.TempDir(), p.newWorkerToken(t, 2)
	m := p.joinWorker(t, "w", dir, token)
	p.admin(t, http.MethodDelete, "instances/w", nil) // so that it cannot renew
	if err := m.Run(t.Context()); !errors.Is(err, member.ErrEnded) || !errors.Is(err, member.ErrNotMember) {
		t.Fatalf("the membership ended with %v", err)
	}
	p.joinWorker(t, "w", dir, token)
}

// TestWorkerRefusals: who has no business there, and who says what cannot be.
func TestWorkerRefusals(t *testing.T) {
	p, fleet := workerPlane(t, nil)
	token := p.newWorkerToken(t, 1)
	csr, key, err := pki.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	join := func(change func(*member.JoinRequest)) member.JoinRequest {
		r := member.JoinRequest{Token: token, CSR: string(csr), Name: "w", Host: "127.0.0.1"}
		change(&r)
		return r
	}
	guess := strings.Replace(token, token[17:21], "AAAA", 1)
	hello := client(t, pki.ClientConfig(nil, p.Authority().Pool()))
	device := p.newJoinToken(t, p.newTenant(t, "acme"))
	for name, tc := range map[string]struct {
		body   any
		status int
		param  string
	}{
		"no JSON":          {"hello", 400, ""},
		"no token":         {join(func(r *member.JoinRequest) { r.Token = "" }), 400, "token"},
		"wrong secret":     {join(func(r *member.JoinRequest) { r.Token = guess }), 401, "token"},
		"a device's token": {join(func(r *member.JoinRequest) { r.Token = device }), 401, "token"},
		"bad CSR":          {join(func(r *member.JoinRequest) { r.CSR = "x" }), 400, "csr"},
		"no name":          {join(func(r *member.JoinRequest) { r.Name = "" }), 400, "name"},
		"name":             {join(func(r *member.JoinRequest) { r.Name = "a/b" }), 400, "name"},
		"listed name":      {join(func(r *member.JoinRequest) { r.Name = "d1" }), 409, ""},
		"no host":          {join(func(r *member.JoinRequest) { r.Host = "" }), 400, "host"},
		"wildcard":         {join(func(r *member.JoinRequest) { r.Host = "*.example" }), 400, "host"},
		"every host":       {join(func(r *member.JoinRequest) { r.Host = "0.0.0.0" }), 400, "host"},
		"the cloud's host": {join(func(r *member.JoinRequest) { r.Host = "cloud.example" }), 400, "host"},
		"it in capitals":   {join(func(r *member.JoinRequest) { r.Host = "Cloud.Example" }), 400, "host"},
		"it with a dot":    {join(func(r *member.JoinRequest) { r.Host = "cloud.example." }), 400, "host"},
		"its address":      {join(func(r *member.JoinRequest) { r.Host = "::ffff:10.0.0.1" }), 400, "host"},
	} {
		a := send(t, hello, http.MethodPost, p.url+member.PathJoin, "", tc.body)
		if _, param := a.problem(); a.status != tc.status || param != tc.param || strings.Contains(string(a.body), token[20:40]) {
			t.Errorf("join with %s: %s", name, a)
		}
	}
	if a := send(t, http.DefaultClient, http.MethodPost, p.plain.URL+member.PathJoin, "", join(func(*member.JoinRequest) {})); a.status != http.StatusForbidden {
		t.Errorf("without TLS: %s", a)
	}
	var got member.JoinReply
	send(t, hello, http.MethodPost, p.url+member.PathJoin, "", join(func(*member.JoinRequest) {})).into(t, &got)
	own, err := pki.ParseStatic([]byte(got.Certificate), key)
	if err != nil {
		t.Fatal(err)
	}
	worker := client(t, pki.ClientConfig(own, p.Authority().Pool(), pki.RoleGateway))
	for name, change := range map[string]func(*member.Registration){
		"url":         func(r *member.Registration) { r.URL = "https://elsewhere:1" },
		"url ":        func(r *member.Registration) { r.URL = "https://127.0.0.1" },
		"url  ":       func(r *member.Registration) { r.URL = "https://u:p@127.0.0.1:1/x?y" },
		"url   ":      func(r *member.Registration) { r.URL = "ftp://127.0.0.1:1" },
		"kv":          func(r *member.Registration) { r.KV = "elsewhere:1" },
		"kv ":         func(r *member.Registration) { r.KV = "127.0.0.1:http" },
		"kv  ":        func(r *member.Registration) { r.KV = "127.0.0.1:0" },
		"kv   ":       func(r *member.Registration) { r.KV = "127.0.0.1:" + strings.Repeat("0", 400) + "1" },
		"role":        func(r *member.Registration) { r.Role = "king" },
		"model":       func(r *member.Registration) { r.Model = "other" },
		"epoch":       func(r *member.Registration) { r.Epoch = "" },
		"fingerprint": func(r *member.Registration) { r.Fingerprint = "a\nb" },
	} {
		r := registration("e")
		change(&r)
		a := send(t, worker, http.MethodPost, p.url+member.PathRegister, "", r)
		if _, param := a.problem(); a.status != http.StatusBadRequest || param != strings.TrimSpace(name) {
			t.Errorf("register with another %s: %s", name, a)
		}
	}
	other, _, err := pki.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	if a := send(t, worker, http.MethodPost, p.url+member.PathRenew, "", member.RenewRequest{CSR: string(other)}); a.status != http.StatusBadRequest {
		t.Errorf("renewal for another key: %s", a)
	}
	p.refusesOthers(t, hello)
	if fleet.names() != "" {
		t.Errorf("members %s", fleet.names())
	}
}

// refusesOthers: certificates of other roles, of unknown workers, or none.
func (p *plane) refusesOthers(t *testing.T, nobody *http.Client) {
	t.Helper()
	with := func(peer pki.Peer) *http.Client {
		cert, err := p.Authority().Issue(pki.Spec{Peer: peer})
		if err != nil {
			t.Fatal(err)
		}
		return client(t, pki.ClientConfig((*pki.Static)(&cert), p.Authority().Pool()))
	}
	edge := with(pki.Peer{Role: pki.RoleEdge, Name: "d", Tenant: "11111111-1111-4111-8111-111111111111"})
	gateway, stranger := with(pki.Peer{Role: pki.RoleGateway, Name: "w"}), with(pki.Peer{Role: pki.RoleWorker, Name: "w"})
	for path, body := range map[string]any{member.PathRegister: registration("e"), member.PathHeartbeat: member.Process{Epoch: "e"}, member.PathLeave: member.Process{Epoch: "e"},
		member.PathRenew: member.RenewRequest{}} {
		for who, tc := range map[string]struct {
			http   *http.Client
			status int
		}{"nobody": {nobody, 401}, "an edge node": {edge, 403}, "a gateway": {gateway, 403}} {
			if a := send(t, tc.http, http.MethodPost, p.url+path, "", body); a.status != tc.status {
				t.Errorf("%s as %s: %s", path, who, a)
			}
		}
		if path == member.PathHeartbeat || path == member.PathLeave {
			a := send(t, stranger, http.MethodPost, p.url+path, "", body)
			if code, _ := a.problem(); a.status != http.StatusForbidden || code != member.CodeNotMember {
				t.Errorf("%s as a worker with another key: %s", path, a)
			}
		}
	}
}
