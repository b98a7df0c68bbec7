// Package otelhowdah makes spans and metrics of jobs, from the producer to the worker, by the conventions of
// OpenTelemetry for messaging. It needs only the API of OpenTelemetry.
//
//	telemetry := otelhowdah.New(nil)
//	client, err := howdah.New(howdah.Config{
//		EnqueueMiddleware: []func(howdah.EnqueueFunc) howdah.EnqueueFunc{telemetry.Enqueue},
//	})
//	worker := client.NewWorker(howdah.WorkerConfig{
//		Middleware: []func(howdah.Handler) howdah.Handler{telemetry.Handle},
//	})
//
// The page docs/operate/tracing.md of Howdah has all spans, attributes and metrics.
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

// Tracing has the middleware of producers and of workers.
type Tracing struct {
	tracer  trace.Tracer
	meters  meters
	linked  bool
	brokers sync.Map // Attributes by address.
}

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	meters metric.MeterProvider
	linked bool
}

// MeterProvider sends metrics to this provider instead of the global one.
func MeterProvider(provider metric.MeterProvider) Option {
	return func(o *options) { o.meters = provider }
}

// Linked lets each attempt begin a trace of its own, with a link to its producer, instead of being in the producer's.
func Linked() Option { return func(o *options) { o.linked = true } }

// New makes the middleware, whose spans go to a provider; nil: the global one.
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

// operation is what is done with jobs of a type; of several types if that is empty.
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

// attributes of spans and metrics. Some metrics are without the type of the operation.
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

// broker has the attributes of a broker. Empty: it is not known, and there are none.
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

// failed notes an error on a span.
func failed(span trace.Span, class string, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	span.RecordError(err)
	span.SetAttributes(errorType(class))
	span.SetStatus(codes.Error, cut(err.Error()))
}

func errorType(class string) attribute.KeyValue { return attribute.String("error.type", class) }

// The propagator of the contexts of jobs: W3C's, whatever the program has chosen for its calls.
var w3c propagation.TraceContext

// contextOf is the context that a job carries.
func contextOf(traceparent, tracestate string) trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate}
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), carrier))
}
