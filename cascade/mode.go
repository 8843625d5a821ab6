package cascade

import "fmt"

// Mode is the client's wish about tiers (header X-Weir-Mode).
type Mode string

// The modes. The zero value "" is read as ModeAuto.
const (
	ModeAuto        Mode = "auto"         // the cascade decides
	ModeEdgeOnly    Mode = "edge-only"    // never the cloud
	ModeCloudOnly   Mode = "cloud-only"   // never the edge
	ModePreferEdge  Mode = "prefer-edge"  // the cloud only if the edge cannot answer at all
	ModePreferCloud Mode = "prefer-cloud" // the edge only if the cloud cannot answer at all
)

// ParseMode accepts exactly the five names; "" is ModeAuto.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case "":
		return ModeAuto, nil
	case ModeAuto, ModeEdgeOnly, ModeCloudOnly, ModePreferEdge, ModePreferCloud:
		return m, nil
	}
	return "", fmt.Errorf("unknown mode %q: use auto, edge-only, cloud-only, prefer-edge or prefer-cloud", s)
}

// Privacy says where a request may be processed (header X-Weir-Privacy).
type Privacy string

// The privacy levels. Every value but PrivacyAny is treated as local-only, so
// that a damaged label cannot leak a request.
const (
	PrivacyAny       Privacy = "any"
	PrivacyLocalOnly Privacy = "local-only"
)

// ParsePrivacy accepts exactly the two names; "" is PrivacyAny.
func ParsePrivacy(s string) (Privacy, error) {
	switch p := Privacy(s); p {
	case "":
		return PrivacyAny, nil
	case PrivacyAny, PrivacyLocalOnly:
		return p, nil
	}
	return "", fmt.Errorf("unknown privacy %q: use any or local-only", s)
}

// Stricter returns the stricter of two labels. The label of a request is the
// strictest of its header, its body, the key's policy and the route's policy.
func Stricter(a, b Privacy) Privacy {
	if a.Local() || b.Local() {
		return PrivacyLocalOnly
	}
	return PrivacyAny
}

// Local reports whether the request must stay on this machine.
func (p Privacy) Local() bool { return p != PrivacyAny && p != "" }
