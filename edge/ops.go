package edge

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/loopback"
)

// status is what GET /readyz tells and "weir edge status" prints.
type status struct {
	Status   string        `json:"status"` // ok, degraded or unready
	Phase    string        `json:"phase"`
	Device   string        `json:"device_id,omitempty"`
	Tenant   string        `json:"tenant_id,omitempty"`
	Cloud    string        `json:"cloud_url,omitempty"`
	Link     *uplink.Stats `json:"link,omitempty"`
	Worker   string        `json:"worker,omitempty"` // ready or down
	Model    string        `json:"model,omitempty"`
	Snapshot int64         `json:"snapshot_version,omitempty"`
	Expires  time.Time     `json:"snapshot_expires,omitzero"`
	Usage    *usageStatus  `json:"usage,omitempty"`
}

type usageStatus struct {
	Queued   uint64 `json:"queued"`
	Sent     uint64 `json:"sent"`
	Rejected uint64 `json:"rejected"`
	Dropped  uint64 `json:"dropped"`
}

// settleTime is how long after the start a missing part is called starting.
const settleTime = 10 * time.Second

// status is ok when both tiers can answer, degraded when one can, unready when
// none can or callers cannot be told apart.
func (a *agent) status() status {
	phase, _ := a.phase.Load().(string)
	s := status{Status: "unready", Phase: phase}
	if phase == "joining" { // the parts are not there yet
		return s
	}
	s.Device, s.Tenant, s.Cloud = a.id.DeviceID, a.id.TenantID, a.id.CloudURL
	link := a.link.Stats()
	s.Link = &link
	h, ready := a.worker.Health()
	s.Model, s.Worker = h.Model, "down"
	if ready {
		s.Worker = "ready"
	}
	known := a.cfg.AllowAnonymous
	if v := a.roster.View(); v != nil {
		s.Snapshot, s.Expires, known = v.Snapshot().Version, v.Snapshot().ExpiresAt, true
	}
	c := a.report.Counts()
	s.Usage = &usageStatus{c.Queued, c.Sent, c.Rejected, c.Dropped}
	up := link.State == uplink.Up
	if (!ready || !up) && time.Since(a.began) < settleTime && phase == "serving" {
		s.Phase = "starting"
		return s // a part that is only slow to start is not a degraded one
	}
	switch {
	case phase != "serving" || !known || (!ready && !up):
	case ready && up:
		s.Status = "ok"
	default:
		s.Status = "degraded"
	}
	return s
}

// serveOps starts the operations listener and returns how to stop it.
func (a *agent) serveOps() (stop func(), err error) {
	ln, err := net.Listen("tcp", a.cfg.OpsListen)
	if err != nil {
		return nil, fmt.Errorf("ops_listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.tel.MetricsHandler())
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.serveReady)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	srv := &http.Server{Handler: loopback.Guard(ln.Addr(), mux), ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln) // ends with Close
	}()
	return func() { _ = srv.Close(); <-done }, nil
}

func (a *agent) serveReady(w http.ResponseWriter, _ *http.Request) {
	s := a.status()
	w.Header().Set("Content-Type", "application/json")
	if s.Status == "unready" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(s) // the prober may be gone
}
