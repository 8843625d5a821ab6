package cloudtest

import (
	"net"
	"sync"
	"sync/atomic"
)

// UDPPath forwards datagrams between clients and a server, and drops all of
// them while it is cut, as a firewall does: nobody is told.
type UDPPath struct {
	front net.PacketConn
	back  net.Addr
	cut   atomic.Bool
	count atomic.Uint64

	mu    sync.Mutex
	flows map[string]net.Conn
	wg    sync.WaitGroup
}

func newUDPPath(front net.PacketConn, back net.Addr) *UDPPath {
	p := &UDPPath{front: front, back: back, flows: map[string]net.Conn{}}
	p.wg.Go(p.forward)
	return p
}

// Cut drops every datagram from now on.
func (p *UDPPath) Cut() { p.cut.Store(true) }

// Mend lets datagrams through again.
func (p *UDPPath) Mend() { p.cut.Store(false) }

// Passed counts the datagrams that went through, both ways.
func (p *UDPPath) Passed() uint64 { return p.count.Load() }

func (p *UDPPath) forward() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := p.front.ReadFrom(buf)
		if err != nil {
			return
		}
		if p.cut.Load() {
			continue
		}
		flow, err := p.flow(from)
		if err != nil {
			continue
		}
		p.count.Add(1)
		_, _ = flow.Write(buf[:n])
	}
}

func (p *UDPPath) flow(client net.Addr) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flows[client.String()]; f != nil {
		return f, nil
	}
	f, err := net.Dial("udp", p.back.String())
	if err != nil {
		return nil, err
	}
	p.flows[client.String()] = f
	p.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			if !p.cut.Load() {
				p.count.Add(1)
				_, _ = p.front.WriteTo(buf[:n], client)
			}
		}
	})
	return f, nil
}

func (p *UDPPath) close() {
	_ = p.front.Close()
	p.mu.Lock()
	for _, f := range p.flows {
		_ = f.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
