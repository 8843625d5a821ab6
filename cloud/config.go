package cloud

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cloud/control"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants/spool"
)

// Config is the section "cloud" of the configuration.
type Config struct {
	Name      string   `yaml:"name" usage:"name of this gateway in ledger rows and traces (the host's name by default)"`
	Listen    string   `yaml:"listen" default:"127.0.0.1:7421" usage:"loopback address of the plain API"`
	TLSListen string   `yaml:"tls_listen" default:"127.0.0.1:7422" usage:"address of the TLS API: TCP, and HTTP/3 on UDP at the same port"`
	OpsListen string   `yaml:"ops_listen" default:"127.0.0.1:7423" usage:"address of metrics, health and profiles"`
	TLSNames  []string `yaml:"tls_names" usage:"further host names and addresses of the TLS API"`

	SecretsDir      string `yaml:"secrets_dir" usage:"folder of the certificate authority and the snapshot key (created with mode 0700)"`
	DataDir         string `yaml:"data_dir" usage:"folder of this gateway's own state"`
	DatabaseURL     string `yaml:"database_url" secret:"true" usage:"PostgreSQL connection URL"`
	DatabaseURLFile string `yaml:"database_url_file" usage:"file that holds the PostgreSQL connection URL"`

	Instances []Instance       `yaml:"instances" usage:"model servers"`
	Pools     []string         `yaml:"pools" usage:"models that workers may join with by themselves (weir worker --join)"`
	Models    map[string]Model `yaml:"models" usage:"names that applications ask for: a pool, equal pools (any) or a cascade"`

	FirstByteTimeout time.Duration `yaml:"first_byte_timeout" default:"30s" usage:"longest wait for an attempt's first token"`
	StallTimeout     time.Duration `yaml:"stall_timeout" default:"10s" usage:"longest silence inside a stream"`
	AnswerTimeout    time.Duration `yaml:"answer_timeout" default:"10m" usage:"longest wait for an answer that is not streamed"`
	ProbeInterval    time.Duration `yaml:"probe_interval" default:"1s" usage:"time between two health probes of an instance"`
	Roles            string        `yaml:"roles" default:"fixed" usage:"fixed, or auto: roles of workers follow the load (on one gateway of several)"`
	Moves            string        `yaml:"moves" default:"auto" usage:"when running streams move between workers: auto (to even out load, away from a worker that degrades, at a drain), or drain"`
	MaxInflight      int           `yaml:"max_inflight" default:"1024" usage:"requests under way beyond which new ones are refused"`
	MaxAttempts      int           `yaml:"max_attempts" default:"3" usage:"attempts at instances per request, before the first token"`
	UsageBytes       int64         `yaml:"usage_bytes" default:"1073741824" usage:"bytes of usage rows kept on disk while the database is away"`
	Retention        time.Duration `yaml:"retention" default:"2400h" usage:"age at which ledger rows are dropped, at least 92 days"`
	Drain            time.Duration `yaml:"drain" default:"5s" usage:"time that requests under way get at the end"`
	OTLPEndpoint     string        `yaml:"otlp_endpoint" usage:"OTLP over HTTP for traces, e.g. http://127.0.0.1:4318"`
	LogLevel         string        `yaml:"log_level" default:"info" usage:"debug, info, warn or error"`
}

// Instance is one model server of a pool.
type Instance struct {
	Name   string     `yaml:"name"`
	URL    string     `yaml:"url"`
	Role   route.Role `yaml:"role"`
	Model  string     `yaml:"model"`
	Served string     `yaml:"served_model"` // the model's name there, when it differs
}

// Model is a name that applications may ask for.
type Model struct {
	Pool string `yaml:"pool"`
	// Any names pools that are equals instead: each request asks one of them, the
	// better ones more often by what their answers have earned.
	Any []string `yaml:"any"`
	// Cascade names two to four pools, the small one first, instead: an answer is
	// kept where it is judged right, else the next is asked. The last place may hold
	// equals. Policy holds the settings of package cascade/policy. Calibrations are
	// the files of the pools' models by pool, all but the last; Calibration is the
	// first one's, that of the bundled edge model without either. Quality is the
	// share of requests that a pool is expected to answer rightly, by pool.
	Cascade      []Pools            `yaml:"cascade"`
	Policy       map[string]any     `yaml:"policy"`
	Calibration  string             `yaml:"calibration"`
	Calibrations map[string]string  `yaml:"calibrations"`
	Quality      map[string]float64 `yaml:"quality"`
	// Context is the most tokens of prompt and answer that the (last) pool's
	// servers take, 0 where it is not told. Devices hear of it, and refuse what is
	// surely longer before it is sent.
	Context int `yaml:"context"`
	// Continues declares that the pool's servers go on with a begun answer: a
	// last assistant message with continue_final_message.
	Continues bool `yaml:"continues"`
}

// Values of Config.Roles.
const (
	rolesFixed = "fixed"
	rolesAuto  = "auto"
)

// Values of Config.Moves.
const (
	movesAuto  = "auto"
	movesDrain = "drain"
)

// autoModel is the name that leaves the choice of a model to Weir.
const autoModel = "auto"

// Validate implements config.Validator.
func (c *Config) Validate() error {
	for _, a := range []struct{ key, addr string }{{"listen", c.Listen}, {"tls_listen", c.TLSListen}, {"ops_listen", c.OpsListen}} {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return fmt.Errorf("%s: %q is not an address such as 127.0.0.1:7421", a.key, a.addr)
		}
	}
	if !loopback.Host(c.Listen) {
		return fmt.Errorf("listen: %q is not loopback: applications elsewhere use tls_listen", c.Listen)
	}
	if c.SecretsDir == "" {
		return errors.New("secrets_dir is missing: name a folder for the certificate authority and the snapshot key")
	}
	if err := c.validateNumbers(); err != nil {
		return err
	}
	if c.Roles != "" && c.Roles != rolesFixed && c.Roles != rolesAuto {
		return fmt.Errorf("roles: %q is neither %s nor %s", c.Roles, rolesFixed, rolesAuto)
	}
	if c.Moves != "" && c.Moves != movesAuto && c.Moves != movesDrain {
		return fmt.Errorf("moves: %q is neither %s nor %s", c.Moves, movesAuto, movesDrain)
	}
	if err := c.validatePools(); err != nil {
		return err
	}
	if c.DataDir == "" {
		return errors.New("data_dir is missing: name a folder for usage rows on their way to the database")
	}
	if _, err := telemetry.ParseLevel(c.LogLevel); err != nil {
		return err
	}
	return nil
}

func (c *Config) validateNumbers() error {
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"first_byte_timeout", c.FirstByteTimeout}, {"stall_timeout", c.StallTimeout}, {"answer_timeout", c.AnswerTimeout}, {"probe_interval", c.ProbeInterval}} {
		if d.value <= 0 {
			return fmt.Errorf("%s: %s must be positive", d.key, d.value)
		}
	}
	switch {
	case c.Drain < 0:
		return fmt.Errorf("drain: %s must not be negative", c.Drain)
	case c.MaxInflight <= 0:
		return fmt.Errorf("max_inflight: %d must be positive", c.MaxInflight)
	case c.MaxAttempts <= 0:
		return fmt.Errorf("max_attempts: %d must be positive", c.MaxAttempts)
	case c.UsageBytes != 0 && c.UsageBytes < spool.MinBytes:
		return fmt.Errorf("usage_bytes: %d is less than the %d that rows need on disk", c.UsageBytes, spool.MinBytes)
	case c.Retention != 0 && c.Retention < control.MinRetention:
		return fmt.Errorf("retention: %s is less than %s: devices may bring their rows that late", c.Retention, control.MinRetention)
	}
	return nil
}

func (c *Config) validatePools() error {
	pools := map[string]bool{}
	for _, name := range c.Pools {
		if name == "" {
			return errors.New("pools: a name is empty")
		}
		pools[name] = true
	}
	for i, in := range c.Instances {
		if in.Name == "" || in.URL == "" || in.Model == "" {
			return fmt.Errorf("instances[%d]: name, url and model are needed", i)
		}
		pools[in.Model] = true
	}
	if err := pool.Check(c.members()); err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	if name := c.undecoded(); name != "" {
		return fmt.Errorf("instances: all of model %q are prefill instances: nobody would answer; one has to decode", name)
	}
	for name, m := range c.Models {
		if name == "" {
			return errors.New("models: a name is empty")
		}
		if err := m.validate(); err != nil {
			return fmt.Errorf("models.%s: %w", name, err)
		}
		for _, p := range m.pools() {
			if !pools[p] {
				return fmt.Errorf("models.%s: no instance has the model %q, and pools does not list it", name, p)
			}
		}
	}
	return nil
}

// undecoded names a pool of prefill instances that nobody else can join.
func (c *Config) undecoded() string {
	for _, in := range c.Instances {
		if !slices.Contains(c.Pools, in.Model) && !slices.ContainsFunc(c.Instances, func(other Instance) bool {
			return other.Model == in.Model && other.Role != route.Prefill
		}) {
			return in.Model
		}
	}
	return ""
}

// pool is how the pool watches the instances and steers them.
func (c *Config) pool(client *http.Client, reg prometheus.Registerer, log *slog.Logger) pool.Options {
	o := pool.Options{Members: c.members(), Pools: c.Pools, Client: client, Interval: c.ProbeInterval, Registry: reg, Log: log}
	if c.Roles == rolesAuto {
		o.Roles = &roles.Params{}
	}
	if c.Moves == movesAuto {
		o.Moves = &roles.MoveParams{}
	}
	return o
}

// poolNames are the pools that have instances or may get some.
func (c *Config) poolNames() []string {
	names := slices.Clone(c.Pools)
	for _, in := range c.Instances {
		names = append(names, in.Model)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// members are the instances as the pool wants them.
func (c *Config) members() []pool.Member {
	out := make([]pool.Member, len(c.Instances))
	for i, in := range c.Instances {
		out[i] = pool.Member{Name: in.Name, URL: in.URL, Role: in.Role, Model: in.Model, Served: in.Served}
	}
	return out
}

// models are the names as the gateway wants them. Without a section each pool
// is a name, and auto is the only pool when there is one.
func (c *Config) models() map[string]gateway.Model {
	out := map[string]gateway.Model{}
	for name, m := range c.Models {
		out[name] = gateway.Model{Pool: m.equals()[0], Named: name != autoModel}
	}
	if len(out) > 0 {
		return out
	}
	only := ""
	for _, only = range c.poolNames() {
		out[only] = gateway.Model{Pool: only, Named: true}
	}
	if len(out) == 1 {
		out[autoModel] = gateway.Model{Pool: only}
	}
	return out
}

// databaseURL finds the connection URL. The flag's value is public, so a
// password in it is refused; errors never repeat a URL.
func (c *Config) databaseURL(flag string, getenv func(string) string) (string, error) {
	switch {
	case flag != "":
		if u, err := url.Parse(flag); err != nil || hasPassword(u) {
			return "", errors.New("--database-url must be a URL without a password, because other users see it: use WEIR_DATABASE_URL or --database-url-file")
		}
		return flag, nil
	case c.DatabaseURLFile != "":
		data, err := os.ReadFile(c.DatabaseURLFile)
		if err != nil {
			return "", fmt.Errorf("database_url_file: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	case c.DatabaseURL != "":
		return c.DatabaseURL, nil
	}
	if s := getenv("WEIR_DATABASE_URL"); s != "" {
		return s, nil
	}
	return "", errors.New("no database: set WEIR_DATABASE_URL, --database-url-file or --database-url")
}

func hasPassword(u *url.URL) bool {
	_, has := u.User.Password()
	return has || u.Query().Has("password") || u.Query().Has("sslpassword")
}
