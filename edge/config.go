package edge

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirhq/weir/edge/foresight"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/telemetry"
)

// Config is the section "edge".
type Config struct {
	Listen    string `yaml:"listen" default:"127.0.0.1:7420" usage:"address of the local API"`
	OpsListen string `yaml:"ops_listen" default:"127.0.0.1:7427" usage:"address of /metrics, /livez, /readyz and pprof"`
	DataDir   string `yaml:"data_dir" usage:"folder of the device's identity and state"`

	CloudURL      string   `yaml:"cloud_url" usage:"the cloud, https://host:port (default: the one joined)"`
	CloudURLs     []string `yaml:"cloud_urls" usage:"several gateways of one cloud, instead of cloud_url: the first that works is used"`
	JoinToken     string   `yaml:"join_token" secret:"true"`
	JoinTokenFile string   `yaml:"join_token_file" usage:"file with the join token, needed once"`
	UDP           string   `yaml:"udp" default:"auto" usage:"auto: QUIC, HTTP/2 when UDP does not get through; off: HTTP/2 only"`

	Model         string   `yaml:"model" default:"hub-edge" usage:"local model: a bundled name or a GGUF file"`
	ModelName     string   `yaml:"model_name" usage:"name of the local model in the API (default: of the file)"`
	CloudModels   []string `yaml:"cloud_models" default:"hub-cloud" usage:"model names that mean the cloud"`
	WorkerListen  string   `yaml:"worker_listen" default:"127.0.0.1:7426" usage:"loopback address of the local worker"`
	WorkerThreads int      `yaml:"worker_threads" default:"0" usage:"threads of the local worker (0: its default)"`
	WorkerURL     string   `yaml:"worker_url" usage:"use the OpenAI-compatible server at this loopback URL instead of an own worker"`
	Lib           string   `yaml:"lib" usage:"folder of the inference libraries"`

	Threshold   float64 `yaml:"threshold" default:"-1" usage:"confidence below which the cloud is asked (-1: the calibration's)"`
	Calibration string  `yaml:"calibration" usage:"calibration file (default: the bundled one)"`

	ShadowPerHour   int     `yaml:"shadow_per_hour" default:"60" usage:"kept answers that the cloud may label in an hour (0: none)"`
	ShadowPerDayUSD float64 `yaml:"shadow_per_day_usd" default:"0.1" usage:"dollars that such labels may cost in a day"`

	Embedder foresight.EmbedderConfig `yaml:"embedder" usage:"a service that embeds questions, to foresee before the local model is asked"`

	AllowAnonymous bool     `yaml:"allow_anonymous" default:"false" usage:"serve callers without a key, on the device's account; loopback only"`
	AllowedHosts   []string `yaml:"allowed_hosts" usage:"host names served beside loopback ones"`
	AllowedOrigins []string `yaml:"allowed_origins" usage:"web origins that may call the API"`
	MaxInflight    int      `yaml:"max_inflight" default:"256" usage:"requests at once"`
	MaxLocal       int      `yaml:"max_local" default:"32" usage:"local generations beyond which the edge counts as busy"`

	FirstByte    time.Duration `yaml:"first_byte" default:"30s" usage:"longest wait for a first byte of a model"`
	Stall        time.Duration `yaml:"stall" default:"10s" usage:"longest silence inside a stream"`
	Heartbeat    time.Duration `yaml:"heartbeat" default:"2s" usage:"between comments while a stream is held"`
	SnapshotPoll time.Duration `yaml:"snapshot_poll" default:"5s" usage:"between polls of the tenant's snapshot"`
	UDPProbe     time.Duration `yaml:"udp_probe" default:"15s" usage:"between attempts to return to QUIC"`
	Drain        time.Duration `yaml:"drain" default:"5s" usage:"time for running requests at shutdown"`

	OTLPEndpoint string `yaml:"otlp_endpoint" usage:"OTLP over HTTP, http://host:4318 (none: no traces)"`
	LogLevel     string `yaml:"log_level" default:"info" usage:"debug, info, warn or error"`
}

// Validate reports the first key that cannot be used.
func (c *Config) Validate() error {
	for _, a := range []struct{ key, addr string }{{"listen", c.Listen}, {"ops_listen", c.OpsListen}} {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return fmt.Errorf("%s %q: want host:port", a.key, a.addr)
		}
	}
	if _, err := telemetry.ParseLevel(c.LogLevel); err != nil {
		return err
	}
	switch {
	case c.AllowAnonymous && !loopback.Host(c.Listen):
		return fmt.Errorf("allow_anonymous needs a loopback listener, listen is %q", c.Listen)
	case c.CloudURL != "" && len(c.CloudURLs) > 0:
		return errors.New("cloud_url and cloud_urls exclude one another")
	case c.UDP != "auto" && c.UDP != "off":
		return fmt.Errorf("udp %q: want auto or off", c.UDP)
	case c.Threshold != -1 && (c.Threshold < 0 || c.Threshold > 1):
		return fmt.Errorf("threshold %g: want 0 to 1, or -1 for the calibration's", c.Threshold)
	case c.MaxInflight < 1 || c.MaxLocal < 1:
		return errors.New("max_inflight and max_local must be at least 1")
	case c.ShadowPerHour < 0 || c.ShadowPerHour > 100_000:
		return fmt.Errorf("shadow_per_hour %d: want 0 to 100000", c.ShadowPerHour)
	case !(c.ShadowPerDayUSD >= 0 && c.ShadowPerDayUSD <= 1e6):
		return fmt.Errorf("shadow_per_day_usd %g: want 0 to 1000000", c.ShadowPerDayUSD)
	case len(c.CloudModels) == 0:
		return errors.New("cloud_models is empty")
	}
	if err := c.Embedder.Validate(); err != nil {
		return err
	}
	if c.WorkerURL != "" {
		u, err := url.Parse(c.WorkerURL)
		if err != nil || u.Scheme != "http" || u.Host == "" || !loopback.Host(u.Host) {
			return fmt.Errorf("worker_url %q: want http://127.0.0.1:PORT", c.WorkerURL)
		}
	} else if !loopback.Host(c.WorkerListen) {
		return fmt.Errorf("worker_listen %q: the local worker serves loopback only", c.WorkerListen)
	}
	for _, o := range c.AllowedOrigins {
		if u, err := url.Parse(o); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			return fmt.Errorf("allowed_origins: %q is not an origin such as https://app.example", o)
		}
	}
	return nil
}

// clouds are the gateways, none where the one joined is meant.
func (c *Config) clouds() []string {
	if c.CloudURL != "" {
		return []string{c.CloudURL}
	}
	return c.CloudURLs
}

// modelName is the local model's name in the API.
func (c *Config) modelName() string {
	if c.ModelName != "" {
		return c.ModelName
	}
	return strings.TrimSuffix(filepath.Base(c.Model), ".gguf")
}

// Files of the data directory.
func (c *Config) identityDir() string  { return filepath.Join(c.DataDir, "identity") }
func (c *Config) snapshotFile() string { return filepath.Join(c.DataDir, "snapshot.json") }
func (c *Config) usageDir() string     { return filepath.Join(c.DataDir, "usage") }
func (c *Config) decisionsDir() string { return filepath.Join(c.DataDir, "decisions") }
func (c *Config) foresightDir() string { return filepath.Join(c.DataDir, "foresight") }
func (c *Config) controllersFile() string {
	return filepath.Join(c.DataDir, "controllers.json")
}
