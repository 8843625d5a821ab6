package cloud

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/weirhq/weir/internal/listen"
)

// Limits of the listeners.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	maxStreams     = 1024 // requests at once on one HTTP/2 or HTTP/3 connection
)

// sockets are the role's listeners, bound before anything else starts, so that
// a taken port is one clear line.
type sockets struct {
	plain, tls, ops net.Listener
	udp             net.PacketConn
}

func bind(c *Config) (s sockets, err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.plain, err = listenTCP("listen", c.Listen); err != nil {
		return s, err
	}
	if s.tls, s.udp, err = listen.Both(c.TLSListen); err != nil {
		return s, taken("tls_listen (TCP and UDP)", c.TLSListen, err)
	}
	s.ops, err = listenTCP("ops_listen", c.OpsListen)
	return s, err
}

func listenTCP(key, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, taken(key, addr, err)
	}
	return l, nil
}

func taken(key, addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("cloud.%s: %s is taken: stop the program that listens there or choose another address", key, addr)
	}
	return fmt.Errorf("cloud.%s: %w", key, err)
}

func (s *sockets) close() {
	for _, l := range []net.Listener{s.plain, s.tls, s.ops} {
		if l != nil {
			_ = l.Close()
		}
	}
	if s.udp != nil {
		_ = s.udp.Close()
	}
}

func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		// Failed handshakes are the internet's weather, not news.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// newHTTP3 makes the HTTP/3 server. 0-RTT stays off: its data can be replayed.
func newHTTP3(h http.Handler, conf *tls.Config, addr net.Addr, log *slog.Logger) *http3.Server {
	port := 0
	if udp, ok := addr.(*net.UDPAddr); ok {
		port = udp.Port
	}
	return &http3.Server{
		Handler:        h,
		TLSConfig:      http3.ConfigureTLSConfig(conf),
		MaxHeaderBytes: maxHeaderBytes,
		IdleTimeout:    idleTimeout,
		Port:           port,
		Logger:         log,
		QUICConfig: &quic.Config{
			Allow0RTT:          false,
			MaxIdleTimeout:     time.Minute,
			KeepAlivePeriod:    20 * time.Second,
			MaxIncomingStreams: maxStreams,
		},
	}
}
