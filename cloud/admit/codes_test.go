package admit

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/tenants/fair"
	"github.com/weirhq/weir/tenants/quota"
	"github.com/weirhq/weir/tenants/refusal"
)

// TestCodesAreDocumented: docs/api.md lists every code with which admission
// turns a request away, in the row of its status.
func TestCodesAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[int]string{}
	for line := range strings.Lines(string(page)) {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			if strings.HasPrefix(line, fmt.Sprintf("| %d |", status)) {
				rows[status] = line
			}
		}
	}
	listed := func(status int, code string) {
		if row, refuses := rows[status]; refuses && !strings.Contains(row, "`"+code+"`") {
			t.Errorf("docs/api.md does not list %d %s", status, code)
		}
	}
	if len(rows) != 2 {
		t.Fatalf("rows %v of the table of errors", rows)
	}
	var seen [2]int
	for reason := quota.RateLimited; reason.String() != "unknown"; reason++ {
		e := refusal.Error(quota.Verdict{Reason: reason, LimitID: "l", RetryAfter: time.Second})
		listed(e.Status, e.Code)
		seen[0]++
	}
	listed(429, overrunError(quota.Verdict{Reason: quota.QuotaExhausted}).Code)
	g := new(grant)
	for r := fair.QueueFull; r.String() != "unknown"; r++ {
		e := g.turnedAway(r).(*gateway.Refused).Err
		listed(e.Status, e.Code)
		seen[1]++
	}
	if seen[0] < 7 || seen[1] < 4 {
		t.Errorf("%v codes: the walk misses some", seen)
	}
}
