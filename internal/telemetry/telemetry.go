// Package telemetry sets up a role's logs, traces and metrics: slog to stderr,
// OpenTelemetry traces to an OTLP endpoint when one is configured, metrics for
// Prometheus. Metric names follow the GenAI conventions of OpenTelemetry
// (open-telemetry/semantic-conventions-genai) and stand in genai.go alone.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options say what a role reports and where to.
type Options struct {
	Role     string // "cloud", "worker", "edge"
	Name     string // instance name, for the resource
	Endpoint string // OTLP over HTTP, e.g. "http://127.0.0.1:4318"; "" records no traces
	// Processor, when set, receives ended spans as well: tests use it.
	Processor sdktrace.SpanProcessor
}

// Telemetry holds a role's providers. It never registers globals, so that
// several roles can live in one test process.
type Telemetry struct {
	Tracer   trace.Tracer
	Meter    metric.Meter
	Registry *prometheus.Registry
	GenAI    *GenAI

	traces  *sdktrace.TracerProvider
	metrics *sdkmetric.MeterProvider
}

// Propagator carries W3C trace context between Weir's processes.
var Propagator propagation.TextMapPropagator = propagation.TraceContext{}

// New starts the providers of o. Call Shutdown at the end.
func New(ctx context.Context, o Options) (*Telemetry, error) {
	res := resource.NewSchemaless(
		attribute.String("service.name", "weir-"+o.Role),
		attribute.String("service.instance.id", o.Name))
	t := &Telemetry{Registry: prometheus.NewRegistry()}
	t.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	traceOpts := []sdktrace.TracerProviderOption{sdktrace.WithResource(res)}
	if o.Endpoint != "" {
		exp, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(tracesURL(o.Endpoint)))
		if err != nil {
			return nil, fmt.Errorf("otlp endpoint: %w", err)
		}
		traceOpts = append(traceOpts, sdktrace.WithBatcher(exp))
	}
	if o.Processor != nil {
		traceOpts = append(traceOpts, sdktrace.WithSpanProcessor(o.Processor))
	}
	if o.Endpoint == "" && o.Processor == nil {
		traceOpts = append(traceOpts, sdktrace.WithSampler(sdktrace.NeverSample()))
	}
	t.traces = sdktrace.NewTracerProvider(traceOpts...)
	t.Tracer = t.traces.Tracer("github.com/weirhq/weir/" + o.Role)

	exp, err := otelprom.New(otelprom.WithRegisterer(t.Registry), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	t.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(exp), sdkmetric.WithView(genAIViews()...))
	t.Meter = t.metrics.Meter("github.com/weirhq/weir/" + o.Role)
	if t.GenAI, err = newGenAI(t.Meter); err != nil {
		return nil, err
	}
	return t, nil
}

func tracesURL(endpoint string) string {
	if strings.Contains(strings.TrimPrefix(strings.TrimPrefix(endpoint, "http://"), "https://"), "/") {
		return endpoint
	}
	return endpoint + "/v1/traces"
}

// MetricsHandler serves the registry for Prometheus.
func (t *Telemetry) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(t.Registry, promhttp.HandlerOpts{Registry: t.Registry})
}

// Shutdown sends what is left, for at most five seconds.
func (t *Telemetry) Shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(t.traces.Shutdown(ctx), t.metrics.Shutdown(ctx))
}

// Inject writes the span of ctx into h.
func Inject(ctx context.Context, h http.Header) {
	Propagator.Inject(ctx, propagation.HeaderCarrier(h))
}

// Extract returns ctx with the remote span of h, if any.
func Extract(ctx context.Context, h http.Header) context.Context {
	return Propagator.Extract(ctx, propagation.HeaderCarrier(h))
}

// NewLogger returns a text logger of a role. level is debug, info, warn or
// error.
func NewLogger(w io.Writer, role, level string) (*slog.Logger, error) {
	l, err := ParseLevel(level)
	if err != nil {
		return nil, err
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l})).With("role", role), nil
}

// ParseLevel reads a log level of a configuration.
func ParseLevel(level string) (l slog.Level, err error) {
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return l, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	return l, nil
}
