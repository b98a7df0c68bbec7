package otelhowdah

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// attempt is the telemetry of a running handler, and then of its outcome until the broker confirms it.
type attempt struct {
	t      *Tracing
	ctx    context.Context
	span   trace.Span
	job    *howdah.Job
	broker string
	since  time.Time
}

// Handle is middleware that makes spans and metrics of each attempt and of its outcome, in the trace of the producer.
func (t *Tracing) Handle(next howdah.Handler) howdah.Handler {
	return func(ctx context.Context, job *howdah.Job) (result []byte, err error) {
		a := t.process(ctx, job)
		hasReturned := false
		defer func() {
			if hasReturned {
				return
			} else if p := recover(); p != nil {
				a.ended(ctx, nil, fmt.Errorf("the handler panicked: %v", p))
				panic(p)
			}
			a.ended(ctx, nil, errors.New("the handler ended its goroutine"))
		}()
		result, err = next(a.ctx, job)
		hasReturned = true
		a.ended(ctx, result, err)
		return result, err
	}
}

func (t *Tracing) process(ctx context.Context, job *howdah.Job) *attempt {
	a := &attempt{t: t, job: job, broker: howdah.BrokerOf(ctx), since: time.Now()}
	var options []trace.SpanStartOption
	creation := contextOf(job.Traceparent, job.Tracestate)
	if creation.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: creation}))
	}
	if t.linked || !creation.IsValid() {
		options = append(options, trace.WithNewRoot())
	} else {
		ctx = trace.ContextWithRemoteSpanContext(ctx, creation)
	}
	o := a.operation("process", "process")
	a.ctx, a.span = t.start(ctx, o, trace.SpanKindConsumer, append(a.attributes(), t.broker(a.broker)...), options...)
	if t.meters.consumed.Enabled(ctx) {
		t.meters.consumed.Add(ctx, 1, t.labels(o, false, a.broker, ""))
	}
	return a
}

func (a *attempt) operation(kind, name string) operation {
	return operation{kind, name, a.job.TaskType}
}

func (a *attempt) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{messageID(a.job.Id), attribute.Int("howdah.attempt", int(a.job.Attempt))}
}

// ended ends the span of a handler that has returned, panicked or called [runtime.Goexit].
func (a *attempt) ended(ctx context.Context, result []byte, err error) {
	if err != nil && context.Cause(ctx) == howdah.ErrStopping && errors.Is(err, context.Canceled) {
		err = howdah.Release() // The worker releases the job of a handler that was ended by a stop.
	}
	class := ""
	if nack := howdah.OutcomeOf(a.job, result, err).GetNack(); nack != nil {
		class = "retry"
		if nack.NoRetry {
			class = "fatal"
		}
		recordError(a.span, class, err)
	}
	isRecorded := a.span.IsRecording()
	a.span.End()
	if a.t.meters.process.Enabled(ctx) {
		labels := a.t.labels(a.operation("process", "process"), false, a.broker, class)
		a.t.meters.process.Record(ctx, time.Since(a.since).Seconds(), labels)
	}
	a.since = time.Now()
	howdah.OnSettled(ctx, func(broker string, outcome *howdahv1.Outcome, err error) {
		a.settled(isRecorded, a.operation("settle", nameOf(outcome)), broker, err)
	})
}

// settled ends the span of an outcome and records its metric. The error is nil if the broker has confirmed the outcome.
func (a *attempt) settled(isRecorded bool, o operation, broker string, err error) {
	class := classOf(err)
	if isRecorded {
		more := append(a.attributes(), a.t.broker(broker)...)
		_, span := a.t.start(a.ctx, o, trace.SpanKindClient, more, trace.WithTimestamp(a.since))
		recordError(span, class, err)
		span.End()
	}
	a.t.recordDuration(a.ctx, o, a.since, broker, class)
}

func nameOf(outcome *howdahv1.Outcome) string {
	switch outcome.Outcome.(type) {
	case *howdahv1.Outcome_Nack:
		return "nack"
	case *howdahv1.Outcome_Snooze:
		return "snooze"
	case *howdahv1.Outcome_Release:
		return "release"
	}
	return "ack"
}
