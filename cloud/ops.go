package cloud

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
)

// health is what /readyz says. The database being away alone is degraded, not
// unready: known keys still work.
type health struct {
	Status    string `json:"status"` // ready, degraded, starting or draining
	Snapshot  bool   `json:"snapshot"`
	Database  bool   `json:"database"`
	Instances int    `json:"instances"`
	Ready     int    `json:"instances_ready"`
}

// opsHandler serves operators: metrics, health, profiles.
func opsHandler(metrics http.Handler, ready func() health) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := ready()
		w.Header().Set("Content-Type", "application/json")
		if h.Status != "ready" && h.Status != "degraded" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(h) // the prober may be gone
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
