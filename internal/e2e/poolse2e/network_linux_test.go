package poolse2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirhq/weir/internal/testproc"
)

// alone says that this process is the one that apart has started.
const alone = "WEIR_TEST_NETWORK"

// apart runs the calling test again in a process with a network of its own,
// where it may lay cables and cut them. It returns true in that process; in the
// other it has done everything when it returns.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(alone) != "" {
		return true
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing (package iproute2): %v", tool, err)
		}
	}
	bin, err := testproc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v=true"}
	if at, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+(time.Until(at)-5*time.Second).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), alone+"=1", "WEIR_BIN="+bin)
	cmd.SysProcAttr = ownNetwork()
	out, err := cmd.CombinedOutput()
	var started *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &started):
		t.Skipf("a network namespace needs root or unprivileged user namespaces: %v", err)
	case ended(out, "SKIP", t.Name()):
		t.Skipf("%s", out)
	case err != nil || !ended(out, "PASS", t.Name()):
		t.Errorf("%v\n%s", err, out)
	default:
		t.Logf("%s", out)
	}
	return false
}

// ended reports whether a verbose test run says so of a test.
func ended(out []byte, how, name string) bool {
	return strings.Contains("\n"+string(out), "\n--- "+how+": "+name+" ")
}

// ownNetwork gives a child a network namespace and the right to shape it.
func ownNetwork() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}
	}
	return a
}

// network is a switch, this process beside it, and hosts at its other cables:
//
//	host's eth0 - v-HOST, bridge c-HOST, u-HOST - w-HOST, bridge hub
//
// What a full queue of no packets on v-HOST or u-HOST drops is lost without a
// word to either end.
type network struct {
	hosts map[string]*netHost
}

type netHost struct {
	ip string
	ns *os.File // the namespace
}

const hubIP = "10.77.0.1"

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{hosts: map[string]*netHost{}}
	if out, err := batch("ip", "link set lo up", "link add hub type bridge", "addr add "+hubIP+"/24 dev hub", "link set hub up"); err != nil {
		t.Skipf("this machine lets nobody make a bridge: %v: %s", err, out)
	}
	return n
}

// batch has ip or tc do some commands.
func batch(tool string, commands ...string) (string, error) {
	cmd := exec.Command(tool, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(t *testing.T, tool string, commands ...string) {
	t.Helper()
	if out, err := batch(tool, commands...); err != nil {
		t.Fatalf("%s %v: %v: %s", tool, commands, err, out)
	}
}

// host implements site: it lays a cable for hosts that are new.
func (n *network) host(t *testing.T, name string) string {
	t.Helper()
	if h := n.hosts[name]; h != nil {
		return h.ip
	}
	h := &netHost{ip: fmt.Sprintf("10.77.0.%d", len(n.hosts)+2)}
	n.hosts[name] = h
	var err error
	onThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			h.ns, err = os.Open("/proc/thread-self/ns/net")
		}
	})
	if err != nil {
		t.Fatalf("namespace of %s: %v", name, err)
	}
	t.Cleanup(func() { h.ns.Close() })
	inside := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.ns.Fd())
	must(t, "ip", "link add c-"+name+" type bridge", "link set c-"+name+" up",
		"link add v-"+name+" type veth peer name eth0 netns "+inside,
		"link add u-"+name+" type veth peer name w-"+name,
		"link set v-"+name+" master c-"+name+" up", "link set u-"+name+" master c-"+name+" up", "link set w-"+name+" master hub up")
	var out string
	n.within(t, name, func() { out, err = batch("ip", "link set lo up", "addr add "+h.ip+"/24 dev eth0", "link set eth0 up") })
	if err != nil {
		t.Fatalf("host %s: %v: %s", name, err, out)
	}
	return h.ip
}

// within implements site.
func (n *network) within(t *testing.T, name string, start func()) {
	t.Helper()
	var err error
	onThread(func() {
		if err = unix.Setns(int(n.hosts[name].ns.Fd()), unix.CLONE_NEWNET); err == nil {
			start()
		}
	})
	if err != nil {
		t.Fatalf("enter %s: %v", name, err)
	}
}

// onThread runs f on a thread that ends with it, whatever f has done to it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// direction is which packets a cut loses.
type direction string

const (
	both    direction = "both ways"
	towards direction = "towards it"
	from    direction = "from it"
)

// ports are where a host's cable is cut.
func (d direction) ports(name string) []string {
	switch d {
	case towards:
		return []string{"v-" + name}
	case from:
		return []string{"u-" + name}
	}
	return []string{"v-" + name, "u-" + name}
}

func (n *network) cut(t *testing.T, name string, d direction) {
	t.Helper()
	for _, port := range d.ports(name) {
		must(t, "tc", "qdisc add dev "+port+" root pfifo limit 0")
	}
}

func (n *network) mend(t *testing.T, name string, d direction) {
	t.Helper()
	for _, port := range d.ports(name) {
		must(t, "tc", "qdisc del dev "+port+" root")
	}
}
