package replay

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weirhq/weir/cascade"
)

// Fault is something that goes wrong for some rows of a stream.
type Fault struct {
	Kind        string // cloud-down, budget
	From, Count int    // rows, the first is 0
}

// ParseFault reads KIND=FROM:COUNT.
func ParseFault(s string) (Fault, error) {
	kind, at, _ := strings.Cut(s, "=")
	from, count, ok := strings.Cut(at, ":")
	f := Fault{Kind: kind}
	var err1, err2 error
	f.From, err1 = strconv.Atoi(from)
	f.Count, err2 = strconv.Atoi(count)
	if !ok || err1 != nil || err2 != nil || f.From < 0 || f.Count < 0 {
		return Fault{}, fmt.Errorf("fault %q: want KIND=FROM:COUNT", s)
	}
	switch kind {
	case "cloud-down", "budget":
		return f, nil
	}
	return Fault{}, fmt.Errorf("fault %q: unknown kind: use cloud-down or budget", s)
}

// nodeAt is the node as it is at row k.
func nodeAt(faults []Fault, k int) cascade.Node {
	n := cascade.Node{EdgeReady: true, Link: cascade.LinkUp}
	for _, f := range faults {
		if k < f.From || k >= f.From+f.Count {
			continue
		}
		if f.Kind == "cloud-down" {
			n.Link = cascade.LinkDown
		} else {
			n.Budgeted = true
		}
	}
	return n
}
