package control

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

const (
	maxReport = 1 << 20 // bytes
	// mergedReports of a tenant's other devices make a prior.
	mergedReports = 64
	// priorTau holds a merged prior to where the device's own began.
	priorTau = 100
	// riskLabels are needed before a tenant's base risk counts as known.
	riskLabels = 200
)

// learned keeps what a device has learned and answers with the prior that the
// tenant's other devices agree on, signed. Tenant and device are the
// certificate's, so that a device reaches no tenant but its own.
func (c *Control) learned(g *gin.Context) {
	peer, _, err := c.device(g)
	if err != nil {
		c.fail(g, err)
		return
	}
	body, err := readBody(g, maxReport)
	if err != nil {
		c.fail(g, err)
		return
	}
	var report learn.Report
	if err := decodeBytes(body, &report); err != nil {
		c.fail(g, err)
		return
	}
	if err := report.Check(); err != nil || len(report.Fingerprint) > 128 {
		c.fail(g, openai.BadRequest("", openai.CodeInvalidValue, "the report cannot come from labels: %v", err))
		return
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), callTimeout)
	defer cancel()
	mine := store.Learned{TenantID: peer.Tenant, DeviceID: peer.Name, Fingerprint: report.Fingerprint, Report: body}
	if err := c.store.PutLearned(ctx, mine); err != nil {
		c.fail(g, err)
		return
	}
	others, err := c.store.LearnedBy(ctx, peer.Tenant, report.Fingerprint, peer.Name, mergedReports)
	if err != nil {
		c.fail(g, err)
		return
	}
	prior, err := mergePrior(&report, reports(others))
	if err != nil {
		c.fail(g, openai.Internal(err))
		return
	}
	prior.TenantID = peer.Tenant
	envelope, err := prior.Sign(c.signer)
	if err != nil {
		c.fail(g, openai.Internal(err))
		return
	}
	noStore(g)
	g.Data(http.StatusOK, "application/json", envelope)
}

// reports reads stored reports; those of a newer or older form are left out.
func reports(stored []json.RawMessage) []learn.Report {
	var all []learn.Report
	for _, raw := range stored {
		var r learn.Report
		if json.Unmarshal(raw, &r) == nil && r.Check() == nil {
			all = append(all, r)
		}
	}
	return all
}

// mergePrior merges the reports of others that judge by the same features as
// mine, around where mine began.
func mergePrior(mine *learn.Report, others []learn.Report) (tenants.Prior, error) {
	others = slices.DeleteFunc(others, func(r learn.Report) bool { return !slices.Equal(r.Features, mine.Features) })
	base := cascade.Logistic{Bias: mine.Base[0], W: mine.Base[1:]}
	merged, err := learn.MergePrior(base, priorTau, others)
	if err != nil {
		return tenants.Prior{}, err
	}
	p := tenants.Prior{Fingerprint: mine.Fingerprint, Values: merged.Values(), Devices: len(others)}
	for _, f := range mine.Features {
		p.Features = append(p.Features, string(f))
	}
	return p, nil
}

// checkRisk refuses a risk target that the tenant's traffic, as its devices have
// seen it, cannot keep. Traffic that nobody has labelled yet refuses nothing: the
// nodes then escalate all until they know.
func checkRisk(a *adminCall, n *store.Policy, s *policy.Settings) error {
	if s.Risk == nil {
		return nil
	}
	stored, err := a.tx.LearnedBy(a.ctx, n.TenantID, "", "", mergedReports)
	if err != nil {
		return err
	}
	err = s.CheckRisk(baseRisk(reports(stored), n.Class))
	if errors.Is(err, control.ErrInfeasible) {
		return &tenants.FieldError{Field: "spec", Problem: err.Error()}
	}
	return err
}

// baseRisk is the share of answers that are wrong at the edge and right in the
// cloud, of a class or, for "", of all; NaN while too few labels are known.
func baseRisk(all []learn.Report, class string) float64 {
	var sum learn.Quality
	for _, r := range all {
		for _, s := range r.Cells {
			if class == "" || s.Cell == class {
				sum.Right += s.Helps.Right
				sum.Weight += s.Helps.Weight
			}
		}
	}
	if sum.Weight < riskLabels {
		return math.NaN()
	}
	return sum.Right / sum.Weight
}
