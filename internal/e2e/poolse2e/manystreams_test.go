package poolse2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// mostKiB bounds what a stream costs the gateway in memory: many times what is
// measured.
const mostKiB = 400

// flood is the model of an instance that makes tokens as fast as they are taken.
const flood, floodTokens = "flood", 200_000

// TestManyStreams holds many streams on one gateway, with readers among them that
// do not read and to whom writes block, and tells what a stream costs in memory.
// The others are whole, and nothing is left.
func TestManyStreams(t *testing.T) {
	n, slow, length := count(200, 1000), count(5, 20), count(12, 30)
	f := newFleet(t, loopback{}, 50*time.Millisecond, true, func(f *fleet) {
		f.movesOn = "drain"
		f.instance(t, flood, "mixed", "fake-engine", "--model", flood, "--weir", "--name", flood, "--ctx", "300000", "--log-level", "error")
	})
	before := rss(t, f.all["g1"])
	f.holdTokens(t, "100") // for 5 s each, so that no stream ends before the last begins
	var wg sync.WaitGroup
	var began atomic.Int64
	answers := make([]answer, n)
	for i := range n {
		wg.Go(func() {
			answers[i] = f.ask(t.Context(), "g1", i%prompts, length, true, func() { began.Add(1) })
		})
		if i%50 == 49 {
			time.Sleep(50 * time.Millisecond) // connections come in waves
		}
	}
	eventually(t, "all streams run", func() bool { return began.Load() == int64(n) })
	var leave []func()
	for range slow {
		leave = append(leave, f.neverReads(t))
	}
	f.floods(t, slow)
	during, inFlight := rss(t, f.all["g1"]), f.gauge("g1", "weir_gateway_in_flight")
	if inFlight != float64(n+slow) {
		t.Errorf("%.0f requests in flight, want %d and %d", inFlight, n, slow)
	}
	f.holdTokens(t, "1")
	wg.Wait()
	for i := range answers {
		if !answers[i].whole() {
			t.Fatalf("stream %d: %+v", i, answers[i])
		}
	}
	t.Logf("%d streams and %d that nobody reads at a time: the gateway grew by %d KiB, %.1f KiB a stream; %.0f tokens were made for nobody",
		n, slow, during-before, float64(during-before)/float64(n+slow), f.flooded())
	if during-before > mostKiB*(n+slow) {
		t.Errorf("the gateway grew by %d KiB: at most %d a stream are allowed", during-before, mostKiB)
	}
	for _, leaves := range leave {
		leaves()
	}
	f.idle(t)
}

// holdTokens makes the decode instances take so many times as long for a token.
func (f *fleet) holdTokens(t *testing.T, times string) {
	t.Helper()
	for _, name := range []string{"d1", "d2"} {
		f.put(t, name, "pace", times)
	}
}

// flooded is how many tokens the flood has made.
func (f *fleet) flooded() float64 {
	return f.metric(f.all[flood].url, "vllm:inter_token_latency_seconds_count")
}

// floods waits until the flood stands still, long before its answers' ends, with
// as many requests as do not read: their writes block.
func (f *fleet) floods(t *testing.T, slow int) {
	t.Helper()
	last, still := 0.0, 0
	eventually(t, "writes block", func() bool {
		time.Sleep(200 * time.Millisecond)
		made := f.flooded()
		if still++; made != last || made < float64(slow) {
			last, still = made, 0
		}
		return still >= 5 && f.runs(flood) == slow
	})
	if last >= float64(slow*floodTokens/2) {
		t.Errorf("%.0f tokens of %d went to readers that do not read", last, slow*floodTokens)
	}
}

// neverReads opens a stream and reads nothing of it until its client leaves. Its
// events are large and its socket's buffer is small.
func (f *fleet) neverReads(t *testing.T) (leave func()) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.all["g1"].url+"/v1/chat/completions",
		strings.NewReader(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"prompt"}],"max_tokens":%d,"stream":true,"logprobs":true,"top_logprobs":20}`, flood, floodTokens)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: narrow}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	leave = func() { resp.Body.Close() }
	t.Cleanup(leave)
	return leave
}

// narrow dials with a small buffer for what comes.
func narrow(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// rss is a process's resident memory in KiB.
func rss(t *testing.T, p *process) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.child.PID()))
	if err != nil {
		t.Skip("no /proc here")
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
