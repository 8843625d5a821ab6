// Package edge is the agent on a device, "weir edge": it joins a cloud, serves
// an OpenAI-compatible API on the device, answers with a small local model and
// lets over to the cloud what the local model should not answer.
//
// Parts: identity (who the device is), uplink (QUIC or HTTP/2 to the cloud),
// roster (the tenant's keys and policy), supervise (the local model's
// process), upstream (reading model streams), local (the API and a request's
// life) and report (usage rows).
package edge
