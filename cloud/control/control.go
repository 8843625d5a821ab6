package control

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/rows"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/price"
	"github.com/weirhq/weir/tenants/store"
)

// Options configure a Control.
type Options struct {
	DatabaseURL string // may hold a password; it is never printed
	SecretsDir  string // certificate authority, snapshot key, first admin token
	DataDir     string // of this gateway alone: usage rows, and a signed copy of the snapshot for a start without the database
	// Models are the names that applications may ask for; devices get them too.
	Models  []tenants.Model
	Billing price.Billing // nil: price.DefaultBilling
	Log     *slog.Logger

	Poll         time.Duration // of the configuration's version; 1 s
	UsageBytes   int64         // of usage rows on disk while the database is away; 1 GiB
	Retention    time.Duration // of ledger rows; 100 days, and never below MinRetention
	SnapshotLife time.Duration // how long a snapshot serves without the database; 7 days
	DeviceLife   time.Duration // of a device's certificate; pki.DefaultLife
	WorkerLife   time.Duration // of the certificate of a worker that joined; 30 days
	Heartbeat    time.Duration // wanted between two of a worker's heartbeats; 2 s

	// Pools are the models that workers may join with, Names the cloud's own
	// hosts, which no worker gets a certificate for.
	Pools, Names []string
}

// MinRetention is the least age at which ledger rows are dropped: a device may
// bring its own that late.
const MinRetention = tenants.MaxRowAge + 48*time.Hour

// Control is the control plane. It is safe for concurrent use.
type Control struct {
	o        Options
	auth     *pki.Authority
	signer   ed25519.PrivateKey
	store    *store.Store
	ledger   *ledger.Store
	leases   *lease.Store
	rows     *rows.Recorder
	index    atomic.Pointer[tenants.Index]
	database atomic.Int32 // databaseUnknown, databaseUp, databaseDown
	devices  deviceSnapshots
	joins    chan struct{} // holds maxJoins
	retained time.Time     // for keepHouse alone
	seen     sightings     // devices
	used     sightings     // keys
	// adminsUsed collects when admin tokens were used.
	adminsUsed sightings
	sealer     sealer
	answers    answers   // to be noted
	instances  Instances // nil where the process has none
	kept       string    // list of members on disk, for follow alone
}

// New opens the secrets and, if there is one, the snapshot of the last run. It
// does not connect to the database; Run does.
func New(o Options) (*Control, error) {
	if o.Log == nil || o.SecretsDir == "" || o.DatabaseURL == "" {
		return nil, errors.New("control: Log, SecretsDir and DatabaseURL are needed")
	}
	o.setDefaults()
	c := &Control{o: o, joins: make(chan struct{}, maxJoins)}
	var err error
	if c.auth, err = pki.OpenAuthority(o.SecretsDir); err != nil {
		return nil, err
	}
	if c.signer, err = pki.OpenSnapshotKey(o.SecretsDir); err != nil {
		return nil, err
	}
	if c.sealer, err = newSealer(c.signer); err != nil {
		return nil, err
	}
	if o.DataDir == "" {
		return nil, errors.New("data_dir is missing: name a folder for usage rows on their way to the database")
	}
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("control: data directory: %w", err)
	}
	c.loadKept()
	if c.store, err = store.Open(o.DatabaseURL); err != nil {
		return nil, err
	}
	c.ledger = ledger.NewStore(c.store.Pool())
	c.leases = lease.NewStore(c.store.Pool())
	c.rows, err = rows.Open(rows.Options{Dir: filepath.Join(o.DataDir, "usage"), Sink: c.ledger, MaxBytes: o.UsageBytes, Log: o.Log})
	if err != nil {
		c.store.Close()
		return nil, err
	}
	return c, nil
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&o.Poll, time.Second}, {&o.Retention, 100 * 24 * time.Hour}, {&o.SnapshotLife, 7 * 24 * time.Hour}, {&o.DeviceLife, pki.DefaultLife},
		{&o.WorkerLife, workerLife}, {&o.Heartbeat, heartbeat}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	o.Retention = max(o.Retention, MinRetention)
	if o.Billing == nil {
		o.Billing = price.DefaultBilling()
	}
}

// Authority returns the authority that signs this cloud's certificates.
func (c *Control) Authority() *pki.Authority { return c.auth }

// Index returns the newest snapshot, nil until the first was loaded.
func (c *Control) Index() *tenants.Index { return c.index.Load() }

// DatabaseUp reports whether the last contact with the database succeeded, and
// the last write of ledger rows: a server that is full still answers.
func (c *Control) DatabaseUp() bool {
	return c.database.Load() == databaseUp && !c.rows.Failing()
}

// Begin implements gateway.Recorder. It does not wait for the database.
func (c *Control) Begin(r *tenants.UsageRecord) (gateway.Entry, error) {
	if r.KeyID != "" {
		c.used.note(r.KeyID, r.StartedAt)
	}
	return c.rows.Begin(r)
}

// Rows returns the rows that are on their way to the ledger.
func (c *Control) Rows() *rows.Recorder { return c.rows }

// Leases returns the store of budget leases and shares of rates.
func (c *Control) Leases() *lease.Store { return c.leases }

// keptFile is the snapshot of the last run, signed like those for devices:
// whoever can write files here must not be able to add a key.
const keptFile = "tenants.snapshot"

func (c *Control) keptPath() string { return filepath.Join(c.o.DataDir, keptFile) }

func (c *Control) loadKept() {
	b, err := os.ReadFile(c.keptPath())
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = c.useKept(b)
	}
	if err != nil {
		c.o.Log.Warn("kept tenant snapshot is not usable, waiting for the database", "path", c.keptPath(), "error", err)
	}
}

func (c *Control) useKept(b []byte) error {
	pub, _ := c.signer.Public().(ed25519.PublicKey)
	snap, err := tenants.Verify(b, map[string]ed25519.PublicKey{tenants.SignerID(pub): pub})
	if err != nil {
		return err
	}
	snap.Models = c.o.Models
	x, err := tenants.NewIndex(snap)
	if err != nil {
		return err
	}
	c.index.Store(x)
	return nil
}

// sightings are times of last use by id, collected so that one statement now
// and then writes them all.
type sightings struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (s *sightings) note(id string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = make(map[string]time.Time)
	}
	if at.After(s.at[id]) {
		s.at[id] = at
	}
}

// take returns what was collected and starts anew.
func (s *sightings) take() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.at
	s.at = nil
	return at
}
