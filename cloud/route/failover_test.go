package route

import "testing"

// TestAfterFailure has the policy's rows, at each stage and on either side of
// the first byte.
func TestAfterFailure(t *testing.T) {
	status := func(s Stage, code int) Failure { return Failure{Stage: s, Kind: FailedStatus, Status: code} }
	of := func(s Stage, k FailureKind) Failure { return Failure{Stage: s, Kind: k} }
	shown := func(f Failure, resumable bool) Failure { f.Shown, f.Resumable = true, resumable; return f }
	ill := Verdict{Next: NextElsewhere, Suspect: true, Counts: true}
	tests := []struct {
		f    Failure
		want Verdict
	}{
		{of(StagePrefill, FailedConnect), ill},
		{of(StagePrefill, FailedBroken), ill},
		{of(StagePrefill, FailedTimeout), ill},
		{status(StagePrefill, 500), Verdict{Next: NextElsewhere, Counts: true}},
		{status(StagePrefill, 502), Verdict{Next: NextElsewhere, Counts: true}},
		{status(StagePrefill, 503), Verdict{Next: NextElsewhere}},
		{status(StagePrefill, 429), Verdict{Next: NextElsewhere}},
		{status(StagePrefill, 403), Verdict{Next: NextElsewhere, Counts: true}},
		{status(StagePrefill, 400), Verdict{Next: NextRefuse}},
		{status(StagePrefill, 413), Verdict{Next: NextRefuse}},

		{of(StageDecode, FailedConnect), Verdict{Next: NextElsewhere, KeepHandoff: true, Suspect: true, Counts: true}},
		{of(StageDecode, FailedBroken), ill},
		{of(StageDecode, FailedTimeout), ill},
		{of(StageDecode, FailedStall), ill},
		{status(StageDecode, 500), Verdict{Next: NextElsewhere, Counts: true}},
		{status(StageDecode, 503), Verdict{Next: NextElsewhere, KeepHandoff: true}},
		{status(StageDecode, 429), Verdict{Next: NextElsewhere, KeepHandoff: true}},
		{status(StageDecode, 408), Verdict{Next: NextElsewhere, KeepHandoff: true}},
		{status(StageDecode, 401), Verdict{Next: NextElsewhere, KeepHandoff: true, Counts: true}},
		{status(StageDecode, 404), Verdict{Next: NextRefuse}},
		{status(StageDecode, 422), Verdict{Next: NextRefuse}},

		{shown(of(StageDecode, FailedBroken), false), Verdict{Next: NextCut, Suspect: true, Counts: true}},
		{shown(of(StageDecode, FailedBroken), true), Verdict{Next: NextContinue, Suspect: true, Counts: true}},
		{shown(of(StageDecode, FailedStall), true), Verdict{Next: NextContinue, Suspect: true, Counts: true}},
		{shown(of(StageDecode, FailedConnect), true), Verdict{Next: NextContinue, Suspect: true, Counts: true}},
		{shown(status(StageDecode, 500), false), Verdict{Next: NextCut, Counts: true}},
		{shown(status(StageDecode, 500), true), Verdict{Next: NextContinue, Counts: true}},
		{shown(status(StageDecode, 503), true), Verdict{Next: NextContinue}},
		{shown(status(StageDecode, 400), true), Verdict{Next: NextCut}},
		{shown(status(StagePrefill, 500), true), Verdict{Next: NextContinue, Counts: true}},
	}
	for _, tt := range tests {
		if got := AfterFailure(tt.f); got != tt.want {
			t.Errorf("AfterFailure(%+v) = %+v, want %+v", tt.f, got, tt.want)
		}
	}
	if len(policy) != 7 {
		t.Errorf("the policy has %d rows: test the new one", len(policy))
	}
}
