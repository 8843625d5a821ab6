package cloud

import (
	"github.com/weirhq/weir/cloud/control"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/rows"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/lease"
)

// Begin implements gateway.Recorder.
func (p *fakePlane) Begin(rec *tenants.UsageRecord) (gateway.Entry, error) {
	return gateway.AtEnd(p.Record).Begin(rec)
}

// Attach is for the admin API, which this plane has not.
func (p *fakePlane) Attach(control.Instances) {}

// Leases says that this gateway is alone.
func (p *fakePlane) Leases() *lease.Store { return nil }

// Rows is not asked for without a store of leases.
func (p *fakePlane) Rows() *rows.Recorder { return nil }
