package gateway

import (
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/internal/telemetry"
)

// TestOneTrace: the legs' spans are children of the request's, and the
// instances get the trace; an application's own trace context is not taken.
func TestOneTrace(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tel, err := telemetry.New(t.Context(), telemetry.Options{Role: "cloud", Name: "t", Processor: spans})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Shutdown() })
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, func(o *Options) { o.Telemetry = tel }, p, d)
	const foreign = "0af7651916cd43dd8448eb211c80319c"
	r.chat(t, ask1s, "Traceparent", "00-"+foreign+"-b7ad6b7169203331-01")
	byName := map[string]sdktrace.ReadOnlySpan{}
	await(t, "three spans", func() bool { return len(spans.Ended()) == 3 })
	for _, s := range spans.Ended() {
		byName[s.Name()] = s
	}
	root := byName["chat auto"]
	if root == nil || root.SpanKind() != trace.SpanKindServer {
		t.Fatalf("spans %v", byName)
	}
	id := root.SpanContext().TraceID()
	if id.String() == foreign {
		t.Error("the application's trace context was taken")
	}
	for leg, in := range map[string]*instanceFake{"prefill big": p, "decode big": d} {
		s := byName[leg]
		if s == nil || s.Parent().SpanID() != root.SpanContext().SpanID() || s.SpanKind() != trace.SpanKindClient {
			t.Fatalf("span %s of %v", leg, byName)
		}
		if _, head := in.last(); !strings.Contains(head.Get("Traceparent"), id.String()+"-"+s.SpanContext().SpanID().String()) {
			t.Errorf("%s got traceparent %q", in.name, head.Get("Traceparent"))
		}
	}
}

// TestMetrics looks for the GenAI conventions' names and labels.
func TestMetrics(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	r.chat(t, ask1s)
	const labels = `{gen_ai_operation_name="chat",gen_ai_provider_name="weir",gen_ai_request_model="auto",gen_ai_response_model="big",weir_tier="cloud"}`
	for _, name := range []string{"gen_ai_server_request_duration_seconds_count", "gen_ai_server_time_to_first_token_seconds_count", "gen_ai_server_time_per_output_token_seconds_count"} {
		if got := r.metric(t, name+labels); got != "1" {
			t.Errorf("%s is %q, want 1", name, got)
		}
	}
	for kind, want := range map[string]string{"input": "7", "output": "4"} {
		l := strings.Replace(labels, "weir_tier", `gen_ai_token_type="`+kind+`",weir_tier`, 1)
		if got := r.metric(t, "gen_ai_client_token_usage_sum"+l); got != want {
			t.Errorf("%s tokens %q, want %s", kind, got, want)
		}
	}
	if got := r.metric(t, `weir_gateway_attempts_total{outcome="ok"}`); got != "1" {
		t.Errorf("attempts %q", got)
	}
	if got := r.metric(t, `weir_instance_ready{instance="d",model="big",role="mixed"}`); got != "1" {
		t.Errorf("ready %q", got)
	}
}
