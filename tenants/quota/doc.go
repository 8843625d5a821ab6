// Package quota decides whether a tenant's limits allow an attempt, and keeps
// the counters on which it decides. It is pure: time comes in as an argument,
// nothing is read or written elsewhere.
//
// An Account holds one tenant's limits. Admit checks every limit that matches
// a request and commits to all of them or to none. What it commits is a
// Reservation, which is corrected when the prompt's true length is known,
// topped up while tokens stream, and settled once at the end.
//
// Three kinds of counters stand behind limits:
//
//   - rates (per minute) are integer token buckets. They may go into debt when
//     a settlement exceeds its reservation, and the debt is paid before the
//     next admission. Several gateways share a rate by Split; the documented
//     slack is what one gateway may admit in one refresh interval.
//   - budgets (UTC day or month) are wallets filled from block leases. The
//     store grants a block only out of what nobody else holds, so the sum over
//     all gateways never exceeds the budget: slack 0.
//   - concurrency is a count of open reservations.
//
// Signals: the request's amounts, the clock, the last lease replies. Knob:
// admit or refuse. Fallback: an expired lease refuses a strict tenant and lets
// others use up the remainder that was last known. Known to fail: a non-strict
// tenant whose answers outgrow their reservations overruns by that growth.
//
// Design: leases in blocks after Envoy's rate limit quota service and Google's
// Doorman; buckets as in the leaky bucket as a meter (ITU-T I.371).
package quota
