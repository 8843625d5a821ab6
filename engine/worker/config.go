package worker

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/weirhq/weir/engine/worker/api"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/internal/enroll"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/telemetry"
)

// Values of a switch.
const (
	on  = "on"
	off = "off"
)

// Config is section "worker" of the configuration.
type Config struct {
	Model           string        `yaml:"model" usage:"GGUF file, or the name of a bundled model (hub-edge, hub-cloud)"`
	ServedModelName string        `yaml:"served_model_name" usage:"model name in the API (default: the file's name, or the bundled name)"`
	Runner          string        `yaml:"runner" default:"auto" usage:"what computes: llama (llama.cpp), moe (Weir's own, balances experts), or auto: moe for a mixture of experts that it computes fast"`
	Role            string        `yaml:"role" default:"mixed" usage:"mixed, prefill or decode"`
	Listen          string        `yaml:"listen" default:"127.0.0.1:7424" usage:"address of the API (TCP) and of KV hand-offs (UDP, same port)"`
	Name            string        `yaml:"name" usage:"stable name of this instance (default: role and port)"`
	Threads         int           `yaml:"threads" usage:"threads that compute (default: half of the cores); the sum over all runners of a machine must not exceed its idle cores"`
	Context         int           `yaml:"ctx" usage:"most tokens of one sequence (default: the model's, at most 8192)"`
	MaxSeqs         int           `yaml:"max_seqs" default:"32" usage:"most requests computed at a time, at most 256"`
	MaxBatch        int           `yaml:"max_batch" default:"512" usage:"most tokens in one step"`
	KVTokens        int           `yaml:"kv_tokens" usage:"size of the KV cache in tokens (default: max-seqs times ctx, at most 32768 or one ctx)"`
	PrefixCache     string        `yaml:"prefix_cache" default:"on" usage:"on: keep the KV of requests for those that begin alike; off"`
	Chunk           int           `yaml:"chunk" default:"256" usage:"most prompt tokens in a step in which others generate (0: max-batch): bounds how long a prompt delays them; with a cost model fewer where streams would be late"`
	Headroom        int           `yaml:"headroom" default:"256" usage:"tokens of output that must fit into the KV cache before one more request is admitted (0: its whole output)"`
	CostModel       string        `yaml:"cost_model" usage:"file written by 'weir worker bench', told to gateways"`
	Lib             string        `yaml:"lib" usage:"folder of llama.cpp's libraries (default: where 'weir engine install' puts them)"`
	CacheDir        string        `yaml:"cache_dir" usage:"folder where bundled models are unpacked"`
	TLSCert         string        `yaml:"tls_cert" usage:"PEM certificate of this worker, role worker"`
	TLSKey          string        `yaml:"tls_key" usage:"PEM key of the certificate"`
	TLSCA           string        `yaml:"tls_ca" usage:"PEM certificates of the authorities to trust"`
	AdvertiseHost   string        `yaml:"advertise_host" usage:"host under which other workers reach this one (default: the host of listen)"`
	Join            []string      `yaml:"join" usage:"addresses of a cloud's gateways, https://host:port: the worker joins the cloud's pools, which gives it its certificate"`
	JoinToken       string        `yaml:"join_token" secret:"true"`
	JoinTokenFile   string        `yaml:"join_token_file" usage:"file with the worker token, needed once (or WEIR_WORKER_JOIN_TOKEN)"`
	DataDir         string        `yaml:"data_dir" usage:"folder of the key and the certificate of a worker that joins"`
	KVExportBytes   int64         `yaml:"kv_export_bytes" default:"1073741824" usage:"most bytes of hand-offs kept for other workers"`
	KVPatience      time.Duration `yaml:"kv_patience" default:"2s" usage:"longest wait for another worker's connection, and for the beginning of its hand-off; then the prompt is computed here"`
	KVImportBytes   int64         `yaml:"kv_import_bytes" default:"1073741824" usage:"most bytes of hand-offs fetched from other workers and not yet in the KV cache"`
	MemoryStalls    int           `yaml:"memory_stalls" default:"10" usage:"percent of a minute that all tasks stand still for want of memory, from which on the worker says that it is about to fail (0: never; Linux)"`
	Drain           time.Duration `yaml:"drain" default:"5s" usage:"how long running requests may take when the worker stops"`
	OTLPEndpoint    string        `yaml:"otlp_endpoint" usage:"OTLP/HTTP endpoint for traces (default: none)"`
	LogLevel        string        `yaml:"log_level" default:"info" usage:"debug, info, warn or error"`
	Experts         Experts       `yaml:"experts" usage:"balancing of a mixture of experts"`
}

// Validate implements config.Validator.
func (c *Config) Validate() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %q is not HOST:PORT", c.Listen)
	}
	if _, err := telemetry.ParseLevel(c.LogLevel); err != nil {
		return err
	}
	certs := 0
	for _, f := range []string{c.TLSCert, c.TLSKey, c.TLSCA} {
		if f != "" {
			certs++
		}
	}
	switch {
	case c.Model == "":
		return errors.New("model is missing: give --model FILE, hub-edge or hub-cloud")
	case !slices.Contains(api.Roles, c.Role):
		return fmt.Errorf("role: %q is not mixed, prefill or decode", c.Role)
	case !slices.Contains(Runners, c.Runner):
		return fmt.Errorf("runner: %q is not auto, llama or moe", c.Runner)
	case c.PrefixCache != on && c.PrefixCache != off:
		return fmt.Errorf("prefix_cache: %q is not on or off", c.PrefixCache)
	case certs != 0 && certs != 3:
		return errors.New("tls_cert, tls_key and tls_ca go together: give all three or none")
	case certs != 0 && len(c.Join) > 0:
		return errors.New("join gives the worker its certificate: leave tls_cert, tls_key and tls_ca out")
	case len(c.Join) > 0 && c.DataDir == "":
		return errors.New("data_dir is needed with join: a folder for the worker's key and certificate")
	case !c.certificates() && !loopback.Host(host):
		return fmt.Errorf("listen: %s is not a loopback address: join a cloud, or give tls_cert, tls_key and tls_ca ('weir pki issue' makes them)", c.Listen)
	case c.AdvertiseHost == "" && c.certificates() && unspecified(host):
		return fmt.Errorf("advertise_host is needed when listening on all addresses (%s)", c.Listen)
	case c.MemoryStalls < 0 || c.MemoryStalls > 100:
		return fmt.Errorf("memory_stalls: %d is not a percentage", c.MemoryStalls)
	case c.Threads < 0 || c.Context < 0 || c.MaxSeqs < 1 || c.MaxBatch < c.MaxSeqs || c.KVTokens < 0 || c.KVExportBytes < 0 || c.KVImportBytes < 0 || c.KVPatience <= 0 || c.Chunk < 0 || c.Headroom < 0:
		return errors.New("threads, ctx, kv_tokens, kv_export_bytes, kv_import_bytes, chunk and headroom must not be negative, kv_patience above 0, max_seqs from 1, max_batch from max_seqs")
	}
	for _, cloud := range c.Join {
		if _, err := enroll.Base(cloud); err != nil {
			return fmt.Errorf("join: %w", err)
		}
	}
	return c.Experts.validate()
}

// CheckFiles implements config.FileChecker: it reads the cost model. Whether that
// is of the model is seen at the start, when the model is loaded.
func (c *Config) CheckFiles() error {
	if c.CostModel == "" {
		return nil
	}
	_, err := cost.Read(c.CostModel)
	return err
}

// certificates reports whether the worker has one, or gets one.
func (c *Config) certificates() bool { return c.TLSCert != "" || len(c.Join) > 0 }

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}
