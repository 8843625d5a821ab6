package up

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/weirhq/weir/internal/cli"
)

// Offsets of the listeners from the base port. A worker's KV port is the UDP
// port of its number.
const (
	portEdge = iota
	portCloud
	portCloudTLS // TCP and UDP
	portCloudOps
	portPrefill
	portDecode
	portEdgeWorker
	portEdgeOps
	portCount
)

// DefaultBase is the first port when none is given.
const DefaultBase = 7420

const host = "127.0.0.1"

// layout is where one installation keeps its files and listens.
type layout struct {
	data string
	base int
}

func (l layout) addr(offset int) string { return net.JoinHostPort(host, strconv.Itoa(l.base+offset)) }

func (l layout) url(offset int) string { return "http://" + l.addr(offset) }

func (l layout) path(elem ...string) string {
	return filepath.Join(append([]string{l.data}, elem...)...)
}

func (l layout) config(child string) string { return l.path("config", child+".yaml") }

// DefaultData is $XDG_DATA_HOME/weir, as root /var/lib/weir.
func DefaultData(getenv func(string) string) (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/weir", nil
	}
	if dir := getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "weir"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", errors.New("no home directory is known: give --data DIR")
	}
	return filepath.Join(home, ".local", "share", "weir"), nil
}

// checkPorts fails with one line when a port of the layout is taken.
func (l layout) checkPorts() error {
	if l.base < 1024 || l.base+portCount > 65535 {
		return cli.Usagef("--listen-base %d: use a number from 1024 to %d", l.base, 65535-portCount)
	}
	for offset := range portCount {
		tcp, err := net.Listen("tcp", l.addr(offset))
		if err != nil {
			return portTaken(l.base+offset, "tcp", err)
		}
		tcp.Close()
		if offset == portCloudTLS || offset == portPrefill || offset == portDecode || offset == portEdgeWorker {
			udp, err := net.ListenPacket("udp", l.addr(offset))
			if err != nil {
				return portTaken(l.base+offset, "udp", err)
			}
			udp.Close()
		}
	}
	return nil
}

func portTaken(port int, network string, err error) error {
	return fmt.Errorf("%s port %d cannot be used (%w): is another weir running? Choose other ports with --listen-base", network, port, err)
}

// makeDirs creates the data directory. Only Postgres's user, when that is
// another, has to pass through it: all that is private lies one level deeper.
func (l layout) makeDirs() error {
	if err := os.MkdirAll(l.data, 0o711); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, dir := range []string{l.path("config"), l.path("log"), l.path("secrets"), l.path("edge"), l.path("cloud")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	return nil
}
