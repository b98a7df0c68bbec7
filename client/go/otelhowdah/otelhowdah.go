// Package otelhowdah makes spans and metrics of jobs, from the producer to the worker, according to OpenTelemetry's
// conventions for messaging. It depends on OpenTelemetry's API only, not on the SDK.
//
//	telemetry := otelhowdah.New(nil)
//	client, err := howdah.New(howdah.Config{
//		EnqueueMiddleware: []func(howdah.EnqueueFunc) howdah.EnqueueFunc{telemetry.Enqueue},
//	})
//	worker := client.NewWorker(howdah.WorkerConfig{
//		Middleware: []func(howdah.Handler) howdah.Handler{telemetry.Handle},
//	})
//
// Howdah's page docs/operate/tracing.md lists all spans, attributes and metrics.
package otelhowdah

import (
	"context"
	"net/url"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	howdah "howdah.dev/go"
)

const name = "howdah.dev/go/otelhowdah"

// Tracing has the telemetry middleware for enqueues and for handlers.
type Tracing struct {
	tracer  trace.Tracer
	meters  meters
	linked  bool
	brokers sync.Map // Attributes of each broker, by its address.
}

// Option is an option of [New].
type Option func(*options)

type options struct {
	meters metric.MeterProvider
	linked bool
}

// MeterProvider sets the provider for metrics. Default: the global one.
func MeterProvider(provider metric.MeterProvider) Option {
	return func(o *options) { o.meters = provider }
}

// Linked starts a new trace for each attempt, linked to the producer's. Default: an attempt belongs to its producer's
// trace.
func Linked() Option { return func(o *options) { o.linked = true } }

// New makes the telemetry middleware. The provider receives its spans; nil means the global provider.
func New(provider trace.TracerProvider, change ...Option) *Tracing {
	o := options{meters: otel.GetMeterProvider()}
	for _, f := range change {
		f(&o)
	}
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return &Tracing{
		tracer: provider.Tracer(name, trace.WithInstrumentationVersion(howdah.Version)),
		meters: newMeters(o.meters.Meter(name, metric.WithInstrumentationVersion(howdah.Version))),
		linked: o.linked,
	}
}

// operation names an operation on jobs, for spans and metrics. taskType is empty if the jobs have several types.
type operation struct{ kind, name, taskType string }

// start starts a span.
func (t *Tracing) start(
	ctx context.Context, o operation, kind trace.SpanKind, more []attribute.KeyValue, options ...trace.SpanStartOption,
) (context.Context, trace.Span) {
	title := o.name
	if o.taskType != "" {
		title += " " + o.taskType
	}
	attributes := trace.WithAttributes(append(o.attributes(true), more...)...)
	return t.tracer.Start(ctx, title, append(options, trace.WithSpanKind(kind), attributes)...)
}

// attributes returns an operation's attributes for spans and metrics. If typed is false, it omits
// messaging.operation.type, which counters do not have.
func (o operation) attributes(typed bool) []attribute.KeyValue {
	found := make([]attribute.KeyValue, 0, 9)
	found = append(found, attribute.String("messaging.system", "howdah"), attribute.String("messaging.operation.name", o.name))
	if typed {
		found = append(found, attribute.String("messaging.operation.type", o.kind))
	}
	if o.taskType != "" {
		found = append(found, attribute.String("messaging.destination.name", o.taskType))
	}
	return found
}

func messageID(id int64) attribute.KeyValue {
	return attribute.String("messaging.message.id", strconv.FormatInt(id, 10))
}

// broker returns the address of a broker as attributes; none if the address is empty, which means unknown.
func (t *Tracing) broker(address string) []attribute.KeyValue {
	if known, ok := t.brokers.Load(address); ok {
		return known.([]attribute.KeyValue)
	}
	found := []attribute.KeyValue{}
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		port, err := strconv.Atoi(u.Port())
		if err != nil && u.Scheme == "https" {
			port = 443
		} else if err != nil {
			port = 80
		}
		found = append(found, attribute.String("server.address", u.Hostname()), attribute.Int("server.port", port))
	}
	t.brokers.Store(address, found)
	return found
}

// recordError records an error on a span, if there is one.
func recordError(span trace.Span, class string, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	span.RecordError(err)
	span.SetAttributes(errorType(class))
	span.SetStatus(codes.Error, shorten(err.Error()))
}

func errorType(class string) attribute.KeyValue { return attribute.String("error.type", class) }

// w3c propagates the trace contexts of jobs, independently of the program's global propagator.
var w3c propagation.TraceContext

// contextOf parses the trace context that a job carries. The result is invalid if the job has none.
func contextOf(traceparent, tracestate string) trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate}
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), carrier))
}
