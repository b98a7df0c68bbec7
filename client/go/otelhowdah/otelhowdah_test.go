package otelhowdah_test

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
	"howdah.dev/go/howdahv1"
	"howdah.dev/go/otelhowdah"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// provider makes spans that pass on the context of their parents. The conformance suite looks at real ones.
type provider struct {
	embedded.TracerProvider
	names []string
}

type tracer struct {
	embedded.Tracer
	p *provider
}

func (p *provider) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{p: p} }

func (t tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	p := t.p
	config := trace.NewSpanStartConfig(options...)
	p.names = append(p.names, config.SpanKind().String()+" "+name)
	found := attribute.NewSet(config.Attributes()...)
	if system, _ := found.Value("messaging.system"); system.AsString() != "howdah" {
		p.names = append(p.names, "without a system")
	}
	return noop.NewTracerProvider().Tracer("").Start(ctx, name)
}

func TestATraceGoesFromTheProducerToTheHandler(t *testing.T) {
	spans := &provider{}
	tracing := otelhowdah.New(spans)
	recorder := &howdahtest.Recorder{}
	enqueue := tracing.Enqueue(func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		return recorder.EnqueueAll(ctx, jobs...)
	})
	outer := tracing.Handle(func(ctx context.Context, _ *howdah.Job) ([]byte, error) {
		_, err := enqueue(ctx, []*howdahv1.NewJob{{TaskType: "a"}, {TaskType: "a", Traceparent: "own"}})
		return nil, errors.Join(err, errors.New("broken"))
	})
	howdahtest.Perform(t, outer, nil, func(job *howdahv1.LeasedJob) { job.Traceparent = parent })
	jobs := recorder.Jobs("")
	if jobs[0].Traceparent != parent || jobs[1].Traceparent != "own" {
		t.Error(jobs)
	}
	if len(spans.names) != 2 || spans.names[0] != "consumer process test" || spans.names[1] != "producer send a" {
		t.Error(spans.names)
	}
}
