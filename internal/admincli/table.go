package admincli

import (
	"net/http"

	"github.com/weirhq/weir/internal/cli"
)

// kind is how a flag's text becomes a member of a body.
type kind uint8

const (
	text kind = iota
	number
	fraction
	yesNo
	names  // a list, with commas between
	object // JSON
)

// field is a flag that stands for a member of the body or a parameter.
type field struct {
	member, usage string
	kind          kind
}

// verb is one call of the admin API.
type verb struct {
	name, short  string
	method, path string // {id} is the one argument
	arg          string // its name in the usage; "": none
	body         []field
	query        []field
}

// noun is one command with its verbs. columns are what its tables show.
type noun struct {
	name, short string
	columns     []string
	verbs       []verb
}

var (
	tenantID = field{"tenant_id", "tenant (UUID); needed unless the token is bound to one", text}
	paging   = []field{{"after", "cursor of the next page", text}, {"limit", "rows, 1 to 1000 (default 100)", number}}
	ofTenant = append([]field{{"tenant_id", "only this tenant's", text}}, paging...)
	period   = []field{{"from", "start, such as 2026-01-31T00:00:00Z", text}, {"to", "end, excluded", text}}
)

func get(path string) verb {
	return verb{name: "get", short: "show one", method: http.MethodGet, path: path + "/{id}", arg: "ID"}
}

func listed(path string, query []field) verb {
	return verb{name: "list", short: "list them", method: http.MethodGet, path: path, query: query}
}

func act(name, short, path string) verb {
	return verb{name: name, short: short, method: http.MethodPost, path: path + "/{id}/" + name, arg: "ID"}
}

func rotate(path string) verb {
	v := act("rotate", "give it a new secret, which is shown once", path)
	v.body = []field{{"grace_seconds", "how long the old secret stays good", number}}
	return v
}

func remove(path string) verb {
	return verb{name: "delete", short: "remove one", method: http.MethodDelete, path: path + "/{id}", arg: "ID"}
}

func nouns() []noun {
	class := []field{
		{"ttft_ms", "target for the first token", number}, {"tpot_ms", "target per output token", number}, {"e2e_ms", "target for the whole answer", number},
		{"band", "priority, 0 is served first", number}, {"weight", "share within the band", fraction}, {"sheddable", "may be shed under load", yesNo},
		{"max_queue_ms", "longest wait in line", number}, {"escalations_per_minute", "of each tenant", number},
		{"default_deadline_ms", "where a request gives none", number}, {"default", "for requests that name no class", yesNo},
	}
	key := []field{{"name", "label", text}, {"scopes", "such as explain", names}, {"models", "allowed models; none: all", names},
		{"classes", "allowed SLO classes; none: all", names}, {"expires_at", "such as 2027-01-31T00:00:00Z", text}}
	policy := []field{tenantID, {"class", "an SLO class; none: all others", text}}
	return []noun{
		{"tenants", "tenants: list, create, suspend", []string{"id", "name", "state", "weight", "strict", "created_at"}, []verb{
			listed("tenants", ofTenant), get("tenants"),
			{name: "create", short: "add a tenant", method: http.MethodPost, path: "tenants", body: []field{{"name", "its name", text}, {"weight", "share in the fair queue", fraction},
				{"strict", "refuse rather than overrun a budget", yesNo}}},
			{name: "update", short: "change a tenant", method: http.MethodPatch, path: "tenants/{id}", arg: "ID", body: []field{{"name", "its name", text},
				{"state", "active or suspended", text}, {"weight", "share in the fair queue", fraction}, {"strict", "refuse rather than overrun a budget", yesNo}}},
		}},
		{"admin-tokens", "tokens of the admin API and their roles", []string{"id", "role", "tenant_id", "name", "state", "expires_at", "grace_until", "last_used_at", "token"}, []verb{
			listed("admin-tokens", ofTenant), get("admin-tokens"), rotate("admin-tokens"), act("revoke", "end a token for good", "admin-tokens"),
			{name: "create", short: "add a token; it is shown once", method: http.MethodPost, path: "admin-tokens", body: []field{{"role", "platform_admin, tenant_admin or viewer", text},
				{"tenant_id", "the one tenant that it may see", text}, {"name", "label", text}, {"expires_at", "such as 2027-01-31T00:00:00Z", text}}},
		}},
		{"worker-tokens", "tokens with which workers join the pools by themselves", []string{"id", "name", "uses", "used", "expires_at", "last_used_at", "token"}, []verb{
			listed("worker-tokens", paging), get("worker-tokens"), act("revoke", "let no further worker in with it", "worker-tokens"),
			{name: "create", short: "add a token; it is shown once", method: http.MethodPost, path: "worker-tokens", body: []field{{"name", "label", text},
				{"uses", "workers that it lets in (default 1)", number}, {"ttl_seconds", "how long it may be used (default a day)", number}}},
		}},
		{"keys", "API keys: create, rotate, revoke", []string{"id", "tenant_id", "name", "state", "models", "classes", "expires_at", "grace_until", "last_used_at", "key"}, []verb{
			listed("keys", ofTenant), get("keys"),
			{name: "create", short: "add a key; it is shown once", method: http.MethodPost, path: "keys", body: append([]field{tenantID}, key...)},
			{name: "update", short: "change what a key may do", method: http.MethodPatch, path: "keys/{id}", arg: "ID", body: key},
			rotate("keys"), act("revoke", "end a key for good", "keys"),
		}},
		{"quotas", "limits of tenants, keys and models", []string{"id", "tenant_id", "key_id", "model", "tier", "class", "kind", "window", "limit", "burst", "shadow", "would_have_refused", "set_by"}, []verb{
			listed("limits", ofTenant), get("limits"), remove("limits"),
			{name: "create", short: "add a limit", method: http.MethodPost, path: "limits", body: []field{tenantID, {"key_id", "a key; * counts each apart", text},
				{"model", "only this model", text}, {"tier", "edge or cloud", text}, {"class", "only this SLO class", text},
				{"kind", "requests, input_tokens, output_tokens, total_tokens, cost_nanousd, escalations or concurrent", text},
				{"window", "minute, day, month or at_once", text}, {"limit", "how many", number}, {"burst", "bucket of a rate", number}, {"shadow", "count, refuse nothing", yesNo}}},
			{name: "update", short: "raise, lower or shadow a limit", method: http.MethodPatch, path: "limits/{id}", arg: "ID",
				body: []field{{"limit", "how many", number}, {"burst", "bucket of a rate", number}, {"shadow", "count, refuse nothing", yesNo}}},
		}},
		{"slo", "SLO classes", []string{"name", "band", "weight", "ttft_ms", "tpot_ms", "e2e_ms", "max_queue_ms", "sheddable", "default"}, []verb{
			listed("slo-classes", paging), get("slo-classes"), remove("slo-classes"),
			{name: "create", short: "add a class", method: http.MethodPost, path: "slo-classes", body: append([]field{{"name", "its name", text}}, class...)},
			{name: "update", short: "change a class", method: http.MethodPatch, path: "slo-classes/{id}", arg: "NAME", body: class},
		}},
		{"prices", "the price book, in micro-dollars per million tokens", []string{"version", "tier", "model", "effective_from", "input", "cached_input", "output"}, []verb{
			listed("prices", paging), get("prices"),
			{name: "create", short: "add a row", method: http.MethodPost, path: "prices", body: []field{{"tier", "edge or cloud", text}, {"model", "a model, or *", text},
				{"effective_from", "when it begins (default now)", text}, {"input", "uncached prompt tokens", number}, {"cached_input", "cached prompt tokens", number}, {"output", "generated tokens", number}}},
		}},
		{"policies", "how tenants' requests are cascaded", []string{"tenant_id", "class", "mode", "threshold", "spec"}, []verb{
			listed("policies", ofTenant),
			{name: "put", short: "set a policy", method: http.MethodPut, path: "policies", body: append(policy[:2:2],
				field{"mode", "auto, edge-only, cloud-only, prefer-edge or prefer-cloud", text}, field{"threshold", "0 to 1", fraction}, field{"spec", "the cascade's policy object", object})},
			{name: "delete", short: "remove a policy", method: http.MethodDelete, path: "policies", query: policy},
		}},
		{"audit", "who changed what", []string{"id", "at", "actor", "role", "tenant_id", "action", "object_id"}, []verb{
			listed("audit", append(append([]field{{"actor", "id of an admin token", text}, {"object_kind", "such as key", text}, {"object_id", "one object", text},
				{"action", "such as key.rotate", text}}, period...), ofTenant...)),
		}},
	}
}

// Commands are the commands of this package.
func Commands() []cli.Command {
	var out []cli.Command
	for _, n := range nouns() {
		c := cli.Command{Name: n.name, Short: n.short}
		for _, v := range n.verbs {
			c.Sub = append(c.Sub, n.command(v))
		}
		out = append(out, c)
	}
	return append(out, usageCommand())
}
