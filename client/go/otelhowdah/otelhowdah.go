// Package otelhowdah traces jobs with OpenTelemetry, from the producer to the worker. It needs only the API of
// OpenTelemetry, and names spans by its conventions for messaging.
//
//	tracing := otelhowdah.New(nil)
//	client, err := howdah.New(howdah.Config{
//		EnqueueMiddleware: []func(howdah.EnqueueFunc) howdah.EnqueueFunc{tracing.Enqueue},
//	})
//	worker := client.NewWorker(howdah.WorkerConfig{
//		Middleware: []func(howdah.Handler) howdah.Handler{tracing.Handle},
//	})
package otelhowdah

import (
	"context"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// Tracing has the middleware of producers and of workers.
type Tracing struct{ tracer trace.Tracer }

// New makes tracing with a provider; nil: the global one.
func New(provider trace.TracerProvider) *Tracing {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return &Tracing{provider.Tracer("howdah.dev/go/otelhowdah", trace.WithInstrumentationVersion(howdah.Version))}
}

func (t *Tracing) start(
	ctx context.Context, operation, taskType string, kind trace.SpanKind, more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	attributes := append(more, attribute.String("messaging.system", "howdah"),
		attribute.String("messaging.operation.type", operation), attribute.String("messaging.operation.name", operation))
	name := operation
	if taskType != "" {
		name += " " + taskType
		attributes = append(attributes, attribute.String("messaging.destination.name", taskType))
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
}

// Enqueue makes a span around each enqueue. Jobs without a trace context of their own get that of the span, unless
// the caller has given a request key: its jobs must be the same each time.
func (t *Tracing) Enqueue(next howdah.EnqueueFunc) howdah.EnqueueFunc {
	return func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		taskType := ""
		if len(jobs) > 0 && !slices.ContainsFunc(jobs, func(j *howdahv1.NewJob) bool { return j.TaskType != jobs[0].TaskType }) {
			taskType = jobs[0].TaskType
		}
		count := attribute.Int("messaging.batch.message_count", len(jobs))
		ctx, span := t.start(ctx, "send", taskType, trace.SpanKindProducer, count)
		defer span.End()
		carrier := propagation.MapCarrier{}
		if _, repeatable := howdah.RequestKey(ctx); !repeatable {
			propagation.TraceContext{}.Inject(ctx, carrier)
		}
		traced := make([]*howdahv1.NewJob, len(jobs))
		for i, job := range jobs {
			traced[i] = job
			if job.Traceparent == "" {
				traced[i] = proto.CloneOf(job)
				traced[i].Traceparent, traced[i].Tracestate = carrier["traceparent"], carrier["tracestate"]
			}
		}
		answers, err := next(ctx, traced)
		fail(span, err)
		return answers, err
	}
}

// Handle makes a span around each attempt, in the trace of the job's producer.
func (t *Tracing) Handle(next howdah.Handler) howdah.Handler {
	return func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		carrier := propagation.MapCarrier{"traceparent": job.Traceparent, "tracestate": job.Tracestate}
		ctx = propagation.TraceContext{}.Extract(ctx, carrier)
		id := attribute.String("messaging.message.id", strconv.FormatInt(job.Id, 10))
		ctx, span := t.start(ctx, "process", job.TaskType, trace.SpanKindConsumer, id)
		defer span.End(trace.WithStackTrace(true)) // It records a panic too.
		result, err := next(ctx, job)
		if howdah.OutcomeOf(job, result, err).GetNack() != nil {
			fail(span, err)
		}
		return result, err
	}
}

func fail(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
}
