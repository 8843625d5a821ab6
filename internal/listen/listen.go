// Package listen takes a TCP and a UDP port of one number: what speaks HTTP/2
// and HTTP/3, or HTTP and a QUIC protocol of its own, is one address to others.
package listen

import "net"

// tries bounds the numbers that are drawn for port 0. That a drawn number is
// free on TCP says nothing of UDP, where clients' sockets hold numbers too.
const tries = 20

// Both listens on TCP and UDP at addr, "host:port". Port 0 draws a number that
// both have free.
func Both(addr string) (tcp net.Listener, udp net.PacketConn, err error) {
	for range tries {
		if tcp, err = net.Listen("tcp", addr); err != nil {
			return nil, nil, err
		}
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			return tcp, udp, nil
		}
		_ = tcp.Close()
		if _, port, _ := net.SplitHostPort(addr); port != "0" {
			break
		}
	}
	return nil, nil, err
}
