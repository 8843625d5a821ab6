// Package roster holds an edge node's copy of its tenant's signed snapshot:
// who may call, at which prices, under which policy. It is checked against
// the cloud's key whenever it is read, kept on disk, and so lets the node check
// API keys with the cloud away.
package roster

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

// Errors that a caller decides on.
var (
	// ErrNone says that no snapshot has come yet.
	ErrNone = errors.New("no tenant snapshot yet: the cloud has not been reached since this device joined")
	// ErrStale says that a snapshot is older than the one in use.
	ErrStale = errors.New("snapshot is older than the one in use")
)

// Roster is safe for concurrent use.
type Roster struct {
	path     string
	tenantID string
	trusted  map[string]ed25519.PublicKey
	log      *slog.Logger
	cur      atomic.Pointer[View]
}

// View is one verified snapshot. It is immutable.
type View struct {
	*tenants.Index
	Prices *price.Book
	etag   string
}

// Open reads the snapshot kept at path, if it is there and still verifies. A
// damaged file is reported to log and replaced by the next snapshot.
func Open(path, tenantID string, signer ed25519.PublicKey, log *slog.Logger) (*Roster, error) {
	r := &Roster{path: path, tenantID: tenantID, log: log,
		trusted: map[string]ed25519.PublicKey{tenants.SignerID(signer): signer}}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil
	case err != nil:
		return nil, fmt.Errorf("tenant snapshot: %w", err)
	case st.Size() > tenants.MaxSnapshotBytes:
		log.Warn("kept tenant snapshot is too large to be one, waiting for the cloud's", "path", path)
		return r, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tenant snapshot: %w", err)
	}
	view, err := r.verify(raw, "")
	if err != nil {
		log.Warn("kept tenant snapshot is not usable, waiting for the cloud's", "path", path, "err", err)
		return r, nil
	}
	r.cur.Store(view)
	return r, nil
}

// View returns the snapshot in use, or nil.
func (r *Roster) View() *View { return r.cur.Load() }

// ETag returns the entity tag under which the snapshot in use was served, ""
// when it should be fetched whole: none yet, or it expires soon.
func (r *Roster) ETag(now time.Time) string {
	v := r.cur.Load()
	if v == nil {
		return ""
	}
	s := v.Snapshot()
	if life := s.ExpiresAt.Sub(s.IssuedAt); !s.ExpiresAt.IsZero() && s.ExpiresAt.Sub(now) < life/3 {
		return ""
	}
	return v.etag
}

// Update verifies a signed snapshot, takes it into use and keeps it on disk.
// An error leaves the old one in use, except that a failing disk does not stop
// a verified snapshot.
func (r *Roster) Update(envelope []byte, etag string) error {
	view, err := r.verify(envelope, etag)
	if err != nil {
		return err
	}
	if old := r.cur.Load(); old != nil && view.Snapshot().Version < old.Snapshot().Version {
		return fmt.Errorf("%w: version %d after %d", ErrStale, view.Snapshot().Version, old.Snapshot().Version)
	}
	r.cur.Store(view)
	if err := pki.WriteSecret(r.path, envelope); err != nil {
		return fmt.Errorf("keep tenant snapshot: %w", err)
	}
	return nil
}

func (r *Roster) verify(envelope []byte, etag string) (*View, error) {
	snap, err := tenants.Verify(envelope, r.trusted)
	if err != nil {
		return nil, err
	}
	for _, t := range snap.Tenants {
		if t.ID != r.tenantID {
			return nil, fmt.Errorf("snapshot holds tenant %s, this device belongs to %s", t.ID, r.tenantID)
		}
	}
	index, err := tenants.NewIndex(snap)
	if err != nil {
		return nil, err
	}
	book, err := price.NewBook(snap.Prices)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return &View{Index: index, Prices: book, etag: etag}, nil
}
