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

// Alarmed reports whether an alarm is still being looked into.
func (s *Shadow) Alarmed() bool { return s.left > 0 }

// Pass counts one request.
func (s *Shadow) Pass() { s.left = max(0, s.left-1) }

// Share returns the probability with which the next kept answer is labelled.
// Requests that may not leave the machine, are short of time or over budget are
// never explored on: theirs is 0, whatever Share says.
func (s *Shadow) Share(effective float64) float64 {
	switch {
	case s.Alarmed():
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
