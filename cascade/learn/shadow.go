package learn

// Shadow decides how many kept answers are also sent to the cloud, unseen by
// the client, to be labelled. Without it a cascade would only ever learn about
// the answers that it doubted.
type Shadow struct {
	// Base and Start are the shares of kept answers when the cell knows enough
	// and while it does not (fewer than 500 effective labels); Alarm is the
	// share for AlarmFor requests after a drift alarm.
	Base, Start, Alarm float64
	AlarmFor           int

	left int
}

// NewShadow returns the defaults: 2 %, 5 %, and 20 % for 300 requests.
func NewShadow() *Shadow { return &Shadow{Base: .02, Start: .05, Alarm: .20, AlarmFor: 300} }

// Drifted raises the share for the next AlarmFor requests.
func (s *Shadow) Drifted() { s.left = s.AlarmFor }

// Share returns the probability with which the next kept answer is labelled and
// counts the request. It is 0 for a request that may not leave the machine, is
// short of time or over budget: such a request is never explored on, and the
// cell must be marked biased.
func (s *Shadow) Share(effective float64, excluded bool) float64 {
	alarmed := s.left > 0
	if alarmed {
		s.left--
	}
	switch {
	case excluded:
		return 0
	case alarmed:
		return s.Alarm
	case effective < 500:
		return s.Start
	}
	return s.Base
}

// Propensity is the probability with which a decision's label is seen: 1 when
// it was escalated, the share when it was kept.
func Propensity(escalated bool, share float64) float64 {
	if escalated {
		return 1
	}
	return share
}
