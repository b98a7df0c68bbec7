package otelhowdah

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// sending is the telemetry of an enqueue, or of a submission to a producer, until it is answered.
type sending struct {
	t       *Tracing
	ctx     context.Context
	span    trace.Span
	created []trace.Span // The span `create` of each job, by the job's index; nil for a job without one.
	types   map[string]int64
	single  bool
	since   time.Time
	once    sync.Once
}

// Enqueue is middleware that makes spans and metrics of each enqueue. It adds a trace context to jobs without one. If
// the caller passes a request key it adds none, because repeated calls must then send identical jobs.
func (t *Tracing) Enqueue(next howdah.EnqueueFunc) howdah.EnqueueFunc {
	return func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		if len(jobs) == 0 {
			return next(ctx, jobs)
		}
		s := t.send(ctx, jobs)
		_, fixed := howdah.RequestKey(ctx)
		isLater := howdah.OnEnqueued(ctx, s.ended)
		answers, err := next(s.ctx, s.traced(jobs, fixed))
		if !isLater || err != nil {
			s.ended("", answers, err)
		}
		return answers, err
	}
}

func (t *Tracing) send(ctx context.Context, jobs []*howdahv1.NewJob) *sending {
	s := &sending{t: t, single: len(jobs) == 1, types: map[string]int64{}, since: time.Now()}
	for _, job := range jobs {
		s.types[job.TaskType]++
	}
	_, fixed := howdah.RequestKey(ctx)
	kind := trace.SpanKindClient
	var count []attribute.KeyValue
	if !s.single {
		count = append(count, attribute.Int("messaging.batch.message_count", len(jobs)))
	} else if !fixed && jobs[0].Traceparent == "" {
		kind = trace.SpanKindProducer
	}
	s.ctx, s.span = t.start(ctx, s.operation(), kind, count)
	return s
}

func (s *sending) operation() operation {
	o := operation{kind: "send", name: "send"}
	if len(s.types) == 1 {
		for name := range s.types {
			o.taskType = name
		}
	}
	return o
}

// traced returns the jobs with trace contexts. It copies a job to change it; the jobs of the caller stay unchanged.
func (s *sending) traced(jobs []*howdahv1.NewJob, fixed bool) []*howdahv1.NewJob {
	traced := make([]*howdahv1.NewJob, len(jobs))
	sendTrace := inject(s.ctx)
	for i, job := range jobs {
		traced[i] = job
		switch {
		case job.Traceparent != "":
			if s.span.IsRecording() {
				s.link(contextOf(job.Traceparent, job.Tracestate))
			}
		case fixed:
		case s.single || !s.span.IsRecording():
			traced[i] = withTrace(sendTrace, job)
		default:
			traced[i] = withTrace(inject(s.create(i, len(jobs), job.TaskType)), job)
		}
	}
	return traced
}

// inject returns the trace context of ctx as traceparent and tracestate; empty without a trace.
func inject(ctx context.Context) propagation.MapCarrier {
	carrier := propagation.MapCarrier{}
	w3c.Inject(ctx, carrier)
	return carrier
}

// withTrace returns a copy of the job that carries this trace context.
func withTrace(context propagation.MapCarrier, job *howdahv1.NewJob) *howdahv1.NewJob {
	if len(context) == 0 {
		return job
	}
	job = proto.CloneOf(job)
	job.Traceparent, job.Tracestate = context["traceparent"], context["tracestate"]
	return job
}

// create starts the span `create` of job i of several jobs, and returns a context with it.
func (s *sending) create(i, count int, taskType string) context.Context {
	if s.created == nil {
		s.created = make([]trace.Span, count)
	}
	ctx, span := s.t.start(s.ctx, operation{"create", "create", taskType}, trace.SpanKindProducer, nil)
	s.created[i] = span
	s.link(span.SpanContext())
	return ctx
}

func (s *sending) link(target trace.SpanContext) {
	if target.IsValid() {
		s.span.AddLink(trace.Link{SpanContext: target})
	}
}

// ended ends the spans, with the answer or the error of the enqueue. Only the first call has an effect.
func (s *sending) ended(broker string, answers []*howdahv1.EnqueuedJob, err error) {
	s.once.Do(func() {
		class := classOf(err)
		s.endSpans(broker, class, answers, err)
		s.t.recordDuration(s.ctx, s.operation(), s.since, broker, class)
		if broker == "" || !s.t.meters.sent.Enabled(s.ctx) {
			return // Without a broker, the jobs were not sent, so they are not counted.
		}
		for taskType, count := range s.types {
			o := operation{"send", "send", taskType}
			s.t.meters.sent.Add(s.ctx, count, s.t.labels(o, false, broker, class))
		}
	})
}

func (s *sending) endSpans(broker, class string, answers []*howdahv1.EnqueuedJob, err error) {
	end := func(span trace.Span, i int) {
		if span == nil {
			return
		}
		if span.IsRecording() {
			span.SetAttributes(s.t.broker(broker)...)
			if i < len(answers) {
				span.SetAttributes(messageID(answers[i].Id))
			}
		}
		span.End()
	}
	for i, span := range s.created {
		end(span, i)
	}
	recordError(s.span, class, err)
	if s.single {
		end(s.span, 0)
	} else {
		end(s.span, len(answers))
	}
}
