package listen

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

func TestBoth(t *testing.T) {
	tcp, udp, err := Both("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := tcp.Addr().String()
	if udp.LocalAddr().String() != addr {
		t.Errorf("TCP %s, UDP %s", addr, udp.LocalAddr())
	}
	_, _, err = Both(addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a number whose TCP port is taken: %v", err)
	}
	if err := tcp.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, err = Both(addr)
	var op *net.OpError
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) || op.Net != "udp" {
		t.Errorf("a number whose UDP port is taken: %v", err)
	}
	if tcp, err = net.Listen("tcp", addr); err != nil {
		t.Errorf("the TCP port of a number in vain: %v", err)
	}
	for _, c := range []interface{ Close() error }{tcp, udp} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
