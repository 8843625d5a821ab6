package fake

import (
	"fmt"
	"net"
	"sync"
)

// Door is a listener on a loopback port that can be shut, so that connections
// to it are refused, and opened again at the same address.
type Door struct {
	addr net.Addr

	mu     sync.Mutex
	inner  net.Listener  // nil while shut
	opened chan struct{} // closed by Open and Close
	closed bool
}

var _ net.Listener = (*Door)(nil)

// NewDoor opens a Door on a free port.
func NewDoor() (*Door, error) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("door: %w", err)
	}
	return &Door{addr: inner.Addr(), inner: inner, opened: make(chan struct{})}, nil
}

// Accept implements net.Listener. It waits while the Door is shut.
func (d *Door) Accept() (net.Conn, error) {
	for {
		d.mu.Lock()
		inner, opened, closed := d.inner, d.opened, d.closed
		d.mu.Unlock()
		switch {
		case closed:
			return nil, net.ErrClosed
		case inner == nil:
			<-opened
			continue
		}
		if conn, err := inner.Accept(); err == nil {
			return conn, nil
		}
	}
}

// Shut refuses connections from now on.
func (d *Door) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inner != nil {
		_ = d.inner.Close()
		d.inner = nil
	}
}

// Open takes connections again.
func (d *Door) Open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inner != nil || d.closed {
		return nil
	}
	inner, err := net.Listen("tcp", d.addr.String())
	if err != nil {
		return fmt.Errorf("door: %w", err)
	}
	d.inner = inner
	close(d.opened)
	d.opened = make(chan struct{})
	return nil
}

// Close implements net.Listener.
func (d *Door) Close() error {
	d.Shut()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		close(d.opened)
	}
	return nil
}

// Addr implements net.Listener.
func (d *Door) Addr() net.Addr { return d.addr }
