package control

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/tiers"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/internal/testpg"
)

// twoPools are the instances of pools a and b.
func twoPools(t *testing.T) []pool.Member {
	t.Helper()
	var members []pool.Member
	for _, name := range []string{"a", "b"} {
		s := httptest.NewServer(fake.New(fake.Options{Model: name, Name: name, EngineID: name, Weir: true, Reply: func(string) string { return "by " + name }}))
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		members = append(members, pool.Member{Name: name, URL: s.URL, Model: name})
	}
	return members
}

// scoring is a gateway over a control plane, whose model auto is any of two pools.
type scoring struct {
	*plane
	*httptest.Server
	entry *cascading.Entry
}

func startScoring(t *testing.T, o Options, members []pool.Member) *scoring {
	t.Helper()
	p := start(t, o)
	p.ready(t)
	entry, err := cascading.New(cascading.Options{Tiers: []cascading.Tier{{Pool: "a"}, {Pool: "b"}}, Equals: 2, Policy: policy.Settings{}})
	if err != nil {
		t.Fatal(err)
	}
	instances, err := pool.New(pool.Options{Members: members, Client: http.DefaultClient, Interval: 20 * time.Millisecond, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); instances.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	tel, err := telemetry.New(t.Context(), telemetry.Options{Role: "cloud", Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Shutdown() })
	g, err := gateway.New(gateway.Options{Directory: p, Recorder: p, Feedback: p, Pool: instances, Client: http.DefaultClient, Telemetry: tel, Log: quiet,
		Models: map[string]gateway.Model{"auto": {Pool: "a", Cascade: entry}, "hub-cloud": {Pool: "b", Named: true}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &scoring{p, httptest.NewServer(g), entry}
	t.Cleanup(s.Server.Close)
	eventually(t, "instances are ready", func() bool {
		for _, i := range instances.Status() {
			if !i.Ready {
				return false
			}
		}
		return true
	})
	return s
}

// ask returns the operation and the pool that answered.
func (s *scoring) ask(t *testing.T, key, model string) (op, pool string) {
	t.Helper()
	a := send(t, http.DefaultClient, http.MethodPost, s.Server.URL+"/v1/chat/completions", key, map[string]any{"model": model, "messages": []any{map[string]string{"role": "user", "content": "x"}}})
	var got struct{ Weir contract.Result }
	a.into(t, &got)
	return a.header.Get(contract.HeaderRequestID), got.Weir.Model
}

func (s *scoring) score(t *testing.T, key, op string, score float64) answer {
	t.Helper()
	return send(t, http.DefaultClient, http.MethodPut, s.Server.URL+"/v1/weir/requests/"+op+"/feedback", key, map[string]float64{"score": score})
}

// refresh lets the gateway know what the arms have earned.
func (s *scoring) refresh(t *testing.T) cascading.Arms {
	t.Helper()
	all, err := s.Control.Arms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.entry.SetArms(all["auto"])
	return s.entry.Arms()
}

// Two gateways over one database learn together which of two pools is better, and
// both go to that one.
func TestScoresDecide(t *testing.T) {
	url, members := testpg.Start(t), twoPools(t)
	o := options(t, url)
	first := startScoring(t, o, members)
	o.DataDir = t.TempDir()
	second := startScoring(t, o, members)
	tenant := first.newTenant(t, "acme")
	_, key := first.newKey(t, tenant)
	both := []*scoring{first, second}
	for _, s := range both {
		eventually(t, "the key is known", func() bool {
			return send(t, http.DefaultClient, http.MethodGet, s.Server.URL+"/v1/models", key, nil).status == http.StatusOK
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	quality, chosen := map[string]float64{"a": .2, "b": .9}, map[string]int{}
	for i := range 120 {
		served, told := both[i%2], both[rng.IntN(2)]
		op, pool := served.ask(t, key, "auto")
		if i >= 60 {
			chosen[pool]++
		}
		score := 0.0
		if rng.Float64() < quality[pool] {
			score = 1
		}
		// The other gateway knows of an answer once it is noted.
		if err := served.flushAnswers(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the same again changes nothing
			if a := told.score(t, key, op, score); a.status != http.StatusOK {
				t.Fatalf("%s", a)
			}
		}
		for _, s := range both {
			s.refresh(t)
		}
	}
	if chosen["b"] < 50 {
		t.Errorf("of the last 60 requests %v", chosen)
	}
	labels := 0.0
	for _, arm := range first.refresh(t) {
		labels += arm.Right + arm.Wrong
	}
	if labels < 108 || labels > 120 { // fading
		t.Errorf("%v labels of 120", labels)
	}
	var arms list[shownArm]
	first.admin(t, http.MethodGet, "arms?model=auto", nil).into(t, &arms)
	if len(arms.Data) != 2 || arms.Data[1].Pool != "b" || arms.Data[1].Mean < .7 || arms.Data[1].Low >= arms.Data[1].Mean || arms.Data[1].High <= arms.Data[1].Mean || arms.Data[0].Labels+arms.Data[1].Labels != 120 {
		t.Errorf("%+v", arms.Data)
	}
	rows, err := csv.NewReader(bytes.NewReader(first.admin(t, http.MethodGet, "answers.csv?model=auto", nil).body)).ReadAll()
	if err != nil || len(rows) != 121 || !slices.Equal(rows[0], scoredHeader) {
		t.Fatalf("%v, %d rows", err, len(rows))
	}
	if last := rows[120]; last[1] != tenant || last[3] != "auto" || last[4] != "standard" || last[8] != "feedback" || last[6] == "0" || len(last[7]) != 1 {
		t.Errorf("%q", last)
	}
	if got := first.admin(t, http.MethodGet, "answers.csv?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", nil).status; got != http.StatusBadRequest {
		t.Errorf("a period that ends before it begins: %d", got)
	}
}

// A score is replaced, also in the arms, and nobody scores what is another's.
func TestScoresAreOnesOwn(t *testing.T) {
	s := startScoring(t, options(t, testpg.Start(t)), twoPools(t))
	tenant, other := s.newTenant(t, "acme"), s.newTenant(t, "other")
	_, key := s.newKey(t, tenant)
	_, stranger := s.newKey(t, other)
	for _, k := range []string{key, stranger} {
		eventually(t, "the key is known", func() bool {
			return send(t, http.DefaultClient, http.MethodGet, s.Server.URL+"/v1/models", k, nil).status == http.StatusOK
		})
	}
	op, pool := s.ask(t, key, "auto")
	if a := s.score(t, stranger, op, 1); a.status != http.StatusNotFound {
		t.Errorf("another tenant's: %s", a)
	}
	for _, score := range []float64{0, 1, .25} {
		if a := s.score(t, key, op, score); a.status != http.StatusOK {
			t.Fatalf("%s", a)
		}
		if arm := s.refresh(t)[cascading.Cell{Class: "standard", Pool: pool}]; len(s.entry.Arms()) != 1 || arm.Right != score || arm.Wrong != 1-score {
			t.Errorf("after %v: %+v", score, s.entry.Arms())
		}
	}
	if a := s.score(t, key, contract.NewID(), 1); a.status != http.StatusNotFound {
		t.Errorf("unknown: %s", a)
	}
	plain, _ := s.ask(t, key, "hub-cloud")
	eventually(t, "an answer of a plain pool is scored", func() bool { return s.score(t, key, plain, 1).status == http.StatusOK })
	if n := len(s.refresh(t)); n != 1 {
		t.Errorf("%d arms after the score of a plain pool's answer", n)
	}
}

// A gateway that dies before it has noted an answer leaves its ledger row, which
// does not know the choice: its score is refused, not kept for nothing. That of an
// answer of the same pool by its own name is kept once it is noted.
func TestScoresOfAnswersThatWereNotNoted(t *testing.T) {
	url := testpg.Start(t)
	o := options(t, url)
	s := startScoring(t, o, twoPools(t))
	tenant := s.newTenant(t, "acme")
	_, key := s.newKey(t, tenant)
	o.DataDir = t.TempDir()
	other := startScoring(t, o, twoPools(t))
	for _, g := range []*scoring{s, other} {
		eventually(t, "the key is known", func() bool {
			return send(t, http.DefaultClient, http.MethodGet, g.Server.URL+"/v1/models", key, nil).status == http.StatusOK
		})
	}
	s.answers.flushing.Lock()
	lost, _ := s.ask(t, key, "auto")
	s.answers.take()
	s.answers.flushing.Unlock()
	plain, _ := s.ask(t, key, "hub-cloud")
	eventually(t, "the ledger has the answer", func() bool {
		var seen usageAnswer
		s.admin(t, http.MethodGet, "usage?operation_id="+lost, nil).into(t, &seen)
		return len(seen.Rows) == 1
	})
	for _, g := range []*scoring{s, other} {
		if a := g.score(t, key, lost, 1); a.status != http.StatusNotFound {
			t.Errorf("not noted: %s", a)
		}
	}
	eventually(t, "the other is scored", func() bool { return other.score(t, key, plain, 1).status == http.StatusOK })
	if arms := s.refresh(t); len(arms) != 0 {
		t.Errorf("%+v", arms)
	}
}

// Without the database answers wait, the choice goes on by what is known, and
// scores are told to come back.
func TestScoresWithoutTheDatabase(t *testing.T) {
	pg := testpg.NewServer(t)
	pg.Start(t)
	o := options(t, pg.URL())
	s := startScoring(t, o, twoPools(t))
	tenant := s.newTenant(t, "acme")
	_, key := s.newKey(t, tenant)
	eventually(t, "the key is known", func() bool {
		return send(t, http.DefaultClient, http.MethodGet, s.Server.URL+"/v1/models", key, nil).status == http.StatusOK
	})
	op, _ := s.ask(t, key, "auto")
	if a := s.score(t, key, op, 1); a.status != http.StatusOK {
		t.Fatalf("%s", a)
	}
	known := s.refresh(t)
	pg.Stop()
	op, pool := s.ask(t, key, "auto")
	if a := s.score(t, key, op, 1); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("%s", a)
	}
	if len(s.entry.Arms()) != 1 || fmt.Sprint(s.entry.Arms()) != fmt.Sprint(known) {
		t.Errorf("%v, before %v", s.entry.Arms(), known)
	}
	pg.Start(t)
	eventually(t, "the score of an answer from meanwhile is kept", func() bool { return s.score(t, key, op, 0).status == http.StatusOK })
	if arm := s.refresh(t)[cascading.Cell{Class: "standard", Pool: pool}]; arm.Wrong != 1 {
		t.Errorf("%+v", s.entry.Arms())
	}
	// The arms are the database's: a gateway that starts anew has them.
	o.DataDir = t.TempDir()
	if again := startScoring(t, o, twoPools(t)).refresh(t); fmt.Sprint(again) != fmt.Sprint(s.entry.Arms()) {
		t.Errorf("%v, before %v", again, s.entry.Arms())
	}
}

// Checks are labels without anybody's word: the pool that breaks every third form
// loses against one that breaks one in a hundred, however seldom it is asked.
func TestFormsDecide(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	tenant := p.newTenant(t, "acme")
	answer := func(pool string, broken bool) gateway.Answer {
		return gateway.Answer{Operation: contract.NewID(), TenantID: tenant, Model: "auto", Pool: pool, Propensity: 1, At: time.Now(), Checked: true, Broken: broken}
	}
	for i := range 300 {
		p.Answered(answer("a", i%100 == 0))
	}
	for i := range 20 {
		p.Answered(answer("b", i%3 == 0))
	}
	last := answer("c", true)
	p.Answered(last)
	arms := func() cascading.Arms {
		t.Helper()
		if err := p.flushAnswers(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := p.Control.Arms(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all["auto"]
	}
	learned := arms()
	shares := tiers.Propensities([]tiers.Arm{learned[cascading.Cell{Pool: "a"}], learned[cascading.Cell{Pool: "b"}]}, nil)
	if shares[0] < .99 {
		t.Errorf("%v of %+v", shares, learned)
	}
	if c := learned[cascading.Cell{Pool: "c"}]; c.Wrong != 1 || c.Right != 0 {
		t.Errorf("%+v", c)
	}
	if err := p.Score(t.Context(), gateway.Score{Operation: last.Operation, TenantID: tenant, Value: 1}); err != nil {
		t.Fatal(err)
	}
	if c := arms()[cascading.Cell{Pool: "c"}]; c.Wrong != 0 || c.Right != 1 {
		t.Errorf("%+v", c)
	}
}

// An answer that cannot be kept is in nobody's way: neither one that the database
// refuses, nor one whose operation is another device's.
func TestAnswersThatCannotBeKept(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	tenant := p.newTenant(t, "acme")
	first := gateway.Answer{Operation: contract.NewID(), TenantID: tenant, Device: contract.NewID(), Model: "auto", Pool: "a", Propensity: 1, At: time.Now(), Checked: true}
	same, refused, fine := first, first, first
	same.Device, same.At, same.Broken = contract.NewID(), first.At.Add(time.Second), true
	refused.Operation, refused.Pool = contract.NewID(), strings.Repeat("p", 300)
	fine.Operation = contract.NewID()
	for _, a := range []gateway.Answer{first, same, refused, fine} {
		p.Answered(a)
	}
	if err := p.Score(t.Context(), gateway.Score{Operation: fine.Operation, TenantID: tenant, Value: .5}); err != nil {
		t.Fatal(err)
	}
	all, err := p.Control.Arms(t.Context())
	if arm := all["auto"][cascading.Cell{Pool: "a"}]; err != nil || math.Abs(arm.Wrong-.5) > .01 || math.Abs(arm.Right-1.5) > .01 { // they fade
		t.Errorf("%+v, %v", all, err)
	}
	if waits, _ := p.answers.take(); len(waits) != 0 {
		t.Errorf("%+v wait on", waits)
	}
}

func TestAnswersWaitInABoundedQueue(t *testing.T) {
	var q answers
	for i := range maxAnswers + 5 {
		q.add(false, gateway.Answer{Operation: fmt.Sprint(i)})
	}
	got, lost := q.take()
	q.add(false, gateway.Answer{Operation: "later"})
	q.add(true, got...)
	again, lostAgain := q.take()
	if len(got) != maxAnswers || lost != 5 || len(again) != maxAnswers || lostAgain != 1 || again[0].Operation != "0" || again[maxAnswers-1].Operation != "later" {
		t.Errorf("%d waited, %d lost; then %d and %d", len(got), lost, len(again), lostAgain)
	}
}
