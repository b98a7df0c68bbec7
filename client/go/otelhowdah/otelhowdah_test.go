package otelhowdah_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
	"howdah.dev/go/howdahv1"
	"howdah.dev/go/otelhowdah"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

var broker *howdahtest.Broker

func TestMain(m *testing.M) {
	started, stop, err := howdahtest.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "no broker:", err)
		os.Exit(1)
	}
	broker = started
	status := m.Run()
	stop()
	os.Exit(status)
}

// watched is a client whose spans and metrics the test records.
type watched struct {
	*howdah.Client
	t       *testing.T
	tracing *otelhowdah.Tracing
	spans   *tracetest.InMemoryExporter
	metrics *sdkmetric.ManualReader
}

func watch(t *testing.T, options ...otelhowdah.Option) *watched {
	return watchSampled(t, sdktrace.AlwaysSample(), options...)
}

func watchSampled(t *testing.T, sampler sdktrace.Sampler, options ...otelhowdah.Option) *watched {
	t.Parallel()
	w := &watched{t: t, spans: tracetest.NewInMemoryExporter(), metrics: sdkmetric.NewManualReader()}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(w.spans), sdktrace.WithSampler(sampler))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.metrics))
	w.tracing = otelhowdah.New(tracers, append(options, otelhowdah.MeterProvider(meters))...)
	client, err := howdah.New(howdah.Config{
		Servers:           []string{broker.Address},
		EnqueueMiddleware: []func(howdah.EnqueueFunc) howdah.EnqueueFunc{w.tracing.Enqueue},
	})
	must(t, err)
	t.Cleanup(func() { client.Close() })
	w.Client = client
	return w
}

// work runs a worker with the handler until all jobs of the type have ended, and stops it.
func (w *watched) work(taskType string, handler howdah.Handler, ids ...int64) {
	w.t.Helper()
	worker := w.NewWorker(howdah.WorkerConfig{Middleware: []func(howdah.Handler) howdah.Handler{w.tracing.Handle}})
	worker.Handle(taskType, handler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	waitCtx, cancelWait := context.WithTimeout(ctx, time.Minute)
	defer cancelWait()
	for _, err := range w.Wait(waitCtx, ids...) {
		must(w.t, err)
	}
	cancel()
	must(w.t, <-ended)
}

// span returns the recorded span with this name. It fails the test unless there is exactly one.
func (w *watched) span(name string) tracetest.SpanStub {
	w.t.Helper()
	found := w.named(name)
	if len(found) != 1 {
		w.t.Fatalf("%d spans %q: %v", len(found), name, w.spans.GetSpans())
	}
	return found[0]
}

func (w *watched) named(name string) tracetest.SpanStubs {
	return slices.DeleteFunc(w.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
}

// metric returns the values of a metric by attributes: the number of recordings of a histogram, or the value of a
// counter.
func (w *watched) metric(name string) map[string]int64 {
	w.t.Helper()
	var all metricdata.ResourceMetrics
	must(w.t, w.metrics.Collect(context.Background(), &all))
	found := map[string]int64{}
	for _, metric := range all.ScopeMetrics[0].Metrics {
		if metric.Name != name {
			continue
		}
		switch data := metric.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				found[text(point.Attributes.ToSlice())] = int64(point.Count)
			}
		case metricdata.Sum[int64]:
			for _, point := range data.DataPoints {
				found[text(point.Attributes.ToSlice())] = point.Value
			}
		}
	}
	return found
}

// text formats attributes as sorted lines, for comparison.
func text(attributes []attribute.KeyValue) string {
	var lines []string
	for _, a := range attributes {
		lines = append(lines, fmt.Sprintf("%s=%s:%s", a.Key, a.Value.Type(), a.Value.String()))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// expected formats the attributes that every span and metric has, together with the attributes in more.
func expected(kind, name, taskType string, more ...attribute.KeyValue) string {
	address, err := url.Parse("http://" + strings.TrimPrefix(broker.Address, "http://"))
	if err != nil {
		panic(err)
	}
	port, _ := strconv.Atoi(address.Port())
	all := append(more, attribute.String("messaging.system", "howdah"), attribute.String("messaging.operation.name", name),
		attribute.String("server.address", address.Hostname()), attribute.Int("server.port", port))
	if kind != "" {
		all = append(all, attribute.String("messaging.operation.type", kind))
	}
	if taskType != "" {
		all = append(all, attribute.String("messaging.destination.name", taskType))
	}
	return text(all)
}

func messageID(id int64) attribute.KeyValue {
	return attribute.String("messaging.message.id", strconv.FormatInt(id, 10))
}

func errorType(class string) attribute.KeyValue { return attribute.String("error.type", class) }

func is[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func has(t *testing.T, span tracetest.SpanStub, want attribute.KeyValue) {
	t.Helper()
	if !slices.Contains(span.Attributes, want) {
		t.Errorf("%s has no %v: %v", span.Name, want, span.Attributes)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func done(context.Context, *howdah.Job) ([]byte, error) { return nil, nil }

func TestTheSpansOfAJobAreItsEnqueueItsHandlerAndItsOutcome(t *testing.T) {
	w := watch(t)
	job, err := w.Enqueue(t.Context(), "go.spans", nil)
	must(t, err)
	var inside trace.SpanContext
	w.work("go.spans", func(ctx context.Context, _ *howdah.Job) ([]byte, error) {
		inside = trace.SpanContextFromContext(ctx)
		return nil, nil
	}, job.Id)
	send, process, ack := w.span("send go.spans"), w.span("process go.spans"), w.span("ack go.spans")
	is(t, send.SpanKind, trace.SpanKindProducer)
	is(t, process.SpanKind, trace.SpanKindConsumer)
	is(t, ack.SpanKind, trace.SpanKindClient)
	is(t, process.Parent.SpanID(), send.SpanContext.SpanID())
	is(t, process.Links[0].SpanContext.SpanID(), send.SpanContext.SpanID())
	is(t, ack.Parent.SpanID(), process.SpanContext.SpanID())
	is(t, ack.SpanContext.TraceID(), send.SpanContext.TraceID())
	is(t, inside.SpanID(), process.SpanContext.SpanID())
	answer, err := howdahv1.NewJobServiceClient(w.Client).GetJob(t.Context(), &howdahv1.GetJobRequest{Id: job.Id})
	must(t, err)
	// The broker stored the outcome after the handler had ended, and before the client received the confirmation. So
	// the time of storing lies between the start and the end of the span `ack`.
	stored := answer.Job.FinishTime.AsTime()
	if process.EndTime.After(ack.StartTime) || ack.StartTime.After(stored) || stored.After(ack.EndTime) {
		t.Error(process.EndTime, ack.StartTime, stored, ack.EndTime)
	}
	id, attempt := messageID(job.Id), attribute.Int("howdah.attempt", 1)
	is(t, text(send.Attributes), expected("send", "send", "go.spans", id))
	is(t, text(process.Attributes), expected("process", "process", "go.spans", id, attempt))
	is(t, text(ack.Attributes), expected("settle", "ack", "go.spans", id, attempt))
	for _, span := range []tracetest.SpanStub{send, process, ack} {
		is(t, span.Status.Code, codes.Unset)
	}
}

func TestEachJobOfABatchHasASpanToWhichItsHandlerBelongs(t *testing.T) {
	w := watch(t)
	jobs := []*howdahv1.NewJob{{TaskType: "go.batch"}, {TaskType: "go.batch"}, {TaskType: "go.batch", Traceparent: parent}}
	stored, err := w.EnqueueAll(t.Context(), jobs...)
	must(t, err)
	if jobs[0].Traceparent != "" {
		t.Error("the caller's job was changed")
	}
	var ids []int64
	for _, job := range stored {
		ids = append(ids, job.Id)
	}
	w.work("go.batch", done, ids...)
	send, creates := w.span("send go.batch"), w.named("create go.batch")
	is(t, send.SpanKind, trace.SpanKindClient)
	is(t, text(send.Attributes), expected("send", "send", "go.batch", attribute.Int("messaging.batch.message_count", 3)))
	// The third job already has a trace context and keeps it, so it has no span `create`.
	is(t, len(creates), 2)
	linked := map[string]bool{"b7ad6b7169203331": true}
	for i, create := range creates {
		linked[create.SpanContext.SpanID().String()] = true
		is(t, create.SpanKind, trace.SpanKindProducer)
		is(t, create.Parent.SpanID(), send.SpanContext.SpanID())
		is(t, text(create.Attributes), expected("create", "create", "go.batch", messageID(ids[i])))
		for _, process := range w.named("process go.batch") {
			if slices.Contains(process.Attributes, messageID(ids[i])) {
				is(t, process.Parent.SpanID(), create.SpanContext.SpanID())
			}
		}
	}
	links := map[string]bool{}
	for _, link := range send.Links {
		links[link.SpanContext.SpanID().String()] = true
	}
	if !maps.Equal(links, linked) {
		t.Error(links, linked)
	}
}

func TestABatchOfSeveralTypesIsSentWithoutADestination(t *testing.T) {
	w := watch(t)
	_, err := w.EnqueueAll(t.Context(), &howdahv1.NewJob{TaskType: "go.a"}, &howdahv1.NewJob{TaskType: "go.b"},
		&howdahv1.NewJob{TaskType: "go.a"})
	must(t, err)
	is(t, text(w.span("send").Attributes), expected("send", "send", "", attribute.Int("messaging.batch.message_count", 3)))
	is(t, len(w.named("create go.a")), 2)
	is(t, len(w.named("create go.b")), 1)
	sent := w.metric("messaging.client.sent.messages")
	is(t, sent[expected("", "send", "go.a")], 2)
	is(t, sent[expected("", "send", "go.b")], 1)
}

func TestAHandlerThatFailsAndWhatBecomesOfItAreToldApart(t *testing.T) {
	w := watch(t)
	results := map[string]error{"fails": errors.New("no route"), "fatal": howdah.Fatal(errors.New("no such address"))}
	outcomes := []struct{ does, class, says, settles string }{
		{"fails", "retry", "no route", "nack"},
		{"fatal", "fatal", "no such address", "nack"},
		{"panics", "retry", "the handler panicked: a bug", "nack"},
		{"snoozes", "", "", "snooze"},
	}
	var ids []int64
	for _, o := range outcomes {
		job, err := w.Enqueue(t.Context(), "go.fails", []byte(o.does), func(job *howdahv1.NewJob) { job.MaxAttempts = 1 })
		must(t, err)
		ids = append(ids, job.Id)
	}
	w.work("go.fails", func(_ context.Context, job *howdah.Job) ([]byte, error) {
		switch does := string(job.Payload); {
		case does == "panics":
			panic("a bug")
		case does == "snoozes" && len(job.Checkpoint) == 0:
			must(t, job.SaveCheckpoint(t.Context(), []byte("seen")))
			return nil, howdah.Snooze(time.Millisecond)
		default:
			return nil, results[does]
		}
	}, ids...)
	for i, o := range outcomes {
		found := 0
		for _, span := range w.spans.GetSpans() {
			isFirst := slices.Contains(span.Attributes, attribute.Int("howdah.attempt", 1))
			if !slices.Contains(span.Attributes, messageID(ids[i])) || !isFirst {
				continue
			}
			if span.Name == o.settles+" go.fails" {
				found++
				has(t, span, attribute.String("messaging.operation.name", o.settles))
				is(t, span.Status.Code, codes.Unset) // The broker stored the outcome of the failed attempt.
			} else if span.Name == "process go.fails" && o.class != "" {
				found++
				has(t, span, errorType(o.class))
				is(t, span.Status, sdktrace.Status{Code: codes.Error, Description: o.says})
				is(t, span.Events[0].Name, "exception")
			}
		}
		if found == 0 || found == 1 && o.class != "" {
			t.Errorf("%s: %d spans of %v", o.does, found, w.spans.GetSpans())
		}
	}
	durations := w.metric("messaging.process.duration")
	is(t, durations[expected("", "process", "go.fails", errorType("retry"))], 2)
	is(t, durations[expected("", "process", "go.fails", errorType("fatal"))], 1)
}

func TestAnEnqueueThatIsRefusedSaysWhy(t *testing.T) {
	w := watch(t)
	_, err := w.Enqueue(t.Context(), "go.refused", nil, func(job *howdahv1.NewJob) { job.Priority = -1_000_000 })
	var refused *howdah.Error
	if !errors.As(err, &refused) || refused.Reason == "" {
		t.Fatal(err)
	}
	send := w.span("send go.refused")
	is(t, send.Status, sdktrace.Status{Code: codes.Error, Description: err.Error()})
	is(t, text(send.Attributes), expected("send", "send", "go.refused", errorType(refused.Reason)))
	is(t, w.metric("messaging.client.operation.duration")[text(send.Attributes)], 1)
	is(t, w.metric("messaging.client.sent.messages")[expected("", "send", "go.refused", errorType(refused.Reason))], 1)
}

func TestJobsThatMustStayTheSameGetNoContext(t *testing.T) {
	w := watch(t)
	_, err := w.EnqueueWithKey(t.Context(), "go.same", &howdahv1.NewJob{TaskType: "go.same"})
	must(t, err)
	_, err = w.EnqueueWithKey(t.Context(), "go.same", &howdahv1.NewJob{TaskType: "go.same"})
	must(t, err) // The repeated request is identical, so the broker accepts it.
	_, err = w.EnqueueAll(t.Context(), &howdahv1.NewJob{TaskType: "go.same", Traceparent: parent})
	must(t, err)
	sends := w.named("send go.same")
	for _, send := range sends {
		is(t, send.SpanKind, trace.SpanKindClient)
	}
	is(t, sends[2].Links[0].SpanContext.SpanID().String(), "b7ad6b7169203331")
}

func TestALinkedHandlerBeginsATraceOfItsOwn(t *testing.T) {
	w := watch(t, otelhowdah.Linked())
	job, err := w.Enqueue(t.Context(), "go.linked", nil)
	must(t, err)
	w.work("go.linked", done, job.Id)
	send, process, ack := w.span("send go.linked"), w.span("process go.linked"), w.span("ack go.linked")
	if process.Parent.IsValid() || process.SpanContext.TraceID() == send.SpanContext.TraceID() {
		t.Error(process)
	}
	is(t, process.Links[0].SpanContext.SpanID(), send.SpanContext.SpanID())
	is(t, ack.Parent.SpanID(), process.SpanContext.SpanID())
}

func TestOfJobsThatAreNotSampledOnlyMetricsAreMade(t *testing.T) {
	w := watchSampled(t, sdktrace.NeverSample())
	stored, err := w.EnqueueAll(t.Context(), &howdahv1.NewJob{TaskType: "go.off"}, &howdahv1.NewJob{TaskType: "go.off"})
	must(t, err)
	contexts := make(chan string, 2)
	w.work("go.off", func(_ context.Context, job *howdah.Job) ([]byte, error) {
		contexts <- job.Traceparent
		return nil, nil
	}, stored[0].Id, stored[1].Id)
	first, second := <-contexts, <-contexts
	if first != second || !strings.HasSuffix(first, "-00") || len(w.spans.GetSpans()) > 0 {
		t.Error(first, second, w.spans.GetSpans())
	}
	is(t, w.metric("messaging.client.sent.messages")[expected("", "send", "go.off")], 2)
	is(t, w.metric("messaging.client.consumed.messages")[expected("", "process", "go.off")], 2)
	is(t, w.metric("messaging.process.duration")[expected("", "process", "go.off")], 2)
	durations := w.metric("messaging.client.operation.duration")
	is(t, durations[expected("send", "send", "go.off")], 1)
	is(t, durations[expected("settle", "ack", "go.off")], 2)
}

func TestWhatGoesThroughAPipelineHasTheSpanOfItsOwnAnswer(t *testing.T) {
	w := watch(t)
	producer := w.NewProducer(howdah.ProducerConfig{})
	good, err := producer.Submit(t.Context(), &howdahv1.NewJob{TaskType: "go.pipeline"})
	must(t, err)
	bad, err := producer.Submit(t.Context(), &howdahv1.NewJob{TaskType: "go.refused", Priority: -1_000_000})
	must(t, err)
	stored, err := good.Wait(t.Context())
	must(t, err)
	_, err = bad.Wait(t.Context())
	var refused *howdah.Error
	if !errors.As(err, &refused) {
		t.Fatal(err)
	}
	must(t, producer.Close())
	send := w.span("send go.pipeline")
	is(t, send.SpanKind, trace.SpanKindProducer)
	is(t, text(send.Attributes), expected("send", "send", "go.pipeline", messageID(stored[0].Id)))
	has(t, w.span("send go.refused"), errorType(refused.Reason))
	is(t, w.metric("messaging.client.sent.messages")[expected("", "send", "go.pipeline")], 1)
}

func TestWithoutABrokerTheMiddlewareTracesToo(t *testing.T) {
	w := watch(t)
	recorder := &howdahtest.Recorder{}
	enqueue := w.tracing.Enqueue(func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		return recorder.EnqueueAll(ctx, jobs...)
	})
	outer := w.tracing.Handle(func(ctx context.Context, _ *howdah.Job) ([]byte, error) {
		_, err := enqueue(ctx, []*howdahv1.NewJob{{TaskType: "a"}})
		return nil, errors.Join(err, errors.New("broken"))
	})
	howdahtest.Perform(t, outer, nil, func(job *howdahv1.LeasedJob) { job.Traceparent = parent })
	send := w.span("send a")
	if !strings.Contains(recorder.Jobs("")[0].Traceparent, send.SpanContext.SpanID().String()) {
		t.Error(recorder.Jobs(""))
	}
	is(t, send.Parent.SpanID(), w.span("process test").SpanContext.SpanID())
	is(t, send.SpanContext.TraceID().String(), "0af7651916cd43dd8448eb211c80319c")
}
