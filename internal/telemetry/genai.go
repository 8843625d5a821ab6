package telemetry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// Names of the GenAI conventions for servers.
const (
	metricDuration = "gen_ai.server.request.duration"
	metricTTFT     = "gen_ai.server.time_to_first_token"
	metricTPOT     = "gen_ai.server.time_per_output_token"
	metricTokens   = "gen_ai.client.token.usage"

	AttrOperation     = "gen_ai.operation.name"
	AttrProvider      = "gen_ai.provider.name"
	AttrRequestModel  = "gen_ai.request.model"
	AttrResponseModel = "gen_ai.response.model"
	AttrErrorType     = "error.type"
	AttrTokenType     = "gen_ai.token.type"
)

var buckets = map[string][]float64{
	metricDuration: {.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92},
	metricTTFT:     {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 15, 30, 60},
	metricTPOT:     {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5},
	metricTokens:   {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576},
}

func genAIViews() []sdkmetric.View {
	views := make([]sdkmetric.View, 0, len(buckets))
	for name, bounds := range buckets {
		views = append(views, sdkmetric.NewView(sdkmetric.Instrument{Name: name},
			sdkmetric.Stream{Aggregation: sdkmetric.AggregationExplicitBucketHistogram{Boundaries: bounds}}))
	}
	return views
}

// GenAI records the conventions' server metrics.
type GenAI struct {
	duration, ttft, tpot metric.Float64Histogram
	tokens               metric.Int64Histogram
}

func newGenAI(m metric.Meter) (*GenAI, error) {
	g := &GenAI{}
	var errs [4]error
	g.duration, errs[0] = m.Float64Histogram(metricDuration, metric.WithUnit("s"))
	g.ttft, errs[1] = m.Float64Histogram(metricTTFT, metric.WithUnit("s"))
	g.tpot, errs[2] = m.Float64Histogram(metricTPOT, metric.WithUnit("s"))
	g.tokens, errs[3] = m.Int64Histogram(metricTokens, metric.WithUnit("{token}"))
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("genai metrics: %w", err)
		}
	}
	return g, nil
}

// Request is one finished request.
type Request struct {
	Operation     string // "chat" or "text_completion"
	RequestModel  string // must come from the known models: it is a label
	ResponseModel string
	ErrorType     string // "" for success
	Total, TTFT   time.Duration
	Input, Output int
	// Extra are Weir's own attributes, such as weir.tier. Low cardinality only.
	Extra []attribute.KeyValue
}

// Record adds r to the histograms.
func (g *GenAI) Record(ctx context.Context, r Request) {
	attrs := append([]attribute.KeyValue{
		attribute.String(AttrOperation, r.Operation),
		attribute.String(AttrProvider, "weir"),
		attribute.String(AttrRequestModel, r.RequestModel),
	}, r.Extra...)
	if r.ResponseModel != "" {
		attrs = append(attrs, attribute.String(AttrResponseModel, r.ResponseModel))
	}
	ok := r.ErrorType == ""
	if !ok {
		attrs = append(attrs, attribute.String(AttrErrorType, r.ErrorType))
	}
	set := metric.WithAttributeSet(attribute.NewSet(attrs...))
	g.duration.Record(ctx, r.Total.Seconds(), set)
	if r.TTFT > 0 {
		g.ttft.Record(ctx, r.TTFT.Seconds(), set)
		if r.Output > 1 {
			g.tpot.Record(ctx, (r.Total-r.TTFT).Seconds()/float64(r.Output-1), set)
		}
	}
	if r.Input > 0 {
		g.tokens.Record(ctx, int64(r.Input), tokenSet(attrs, "input"))
	}
	if r.Output > 0 {
		g.tokens.Record(ctx, int64(r.Output), tokenSet(attrs, "output"))
	}
}

// tokenSet adds the token type to a copy: NewSet sorts what it is given.
func tokenSet(attrs []attribute.KeyValue, kind string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(slices.Clone(attrs), attribute.String(AttrTokenType, kind))...))
}
