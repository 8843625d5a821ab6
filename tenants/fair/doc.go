// Package fair decides which queued request goes next, while the pool says
// that it is saturated. It is pure: time comes in as an argument, and the
// caller holds a lock around every call.
//
// The order has three levels:
//
//   - priority bands are outermost: a lower band is served only when every
//     higher one is empty, and only below its ceiling of saturation (holdback);
//   - inside a band, tenants share by the Virtual Token Counter of Sheng et al.
//     (OSDI 2024, arXiv 2401.00588): the tenant with the least weighted service
//     goes next, a tenant that returns from idleness is lifted to the least
//     counter among those waiting, an input token costs 1 and an output token 2;
//   - inside a tenant, requests go by deadline plus a little per prompt token,
//     and those that can no longer make their deadline go behind those that can
//     (the hybrid order and eager relegation of Niyama, ASPLOS 2026).
//
// Signals: queued requests, service charged so far, the pool's saturation and
// prefill rate. Knob: the next request, or none. Constraint: the head must fit;
// where it does not, nobody else is let past it. Fallback: without a prefill
// rate, only a deadline that has passed relegates. Known to fail: counters do
// not see that a cached prefix is cheap, and each gateway counts for itself.
package fair
