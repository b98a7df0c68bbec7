package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

var (
	calls = map[string]func(connected, command) (object, error){
		"close":   func(client connected, _ command) (object, error) { return object{}, client.Close() },
		"enqueue": enqueue, "produce": produce, "wait": wait, "call": call, "work": work,
	}
	numbers atomic.Int64
)

func connect(c command) (err error) {
	cfg := howdah.Config{
		Servers: get[[]string](c, "addresses"), Token: get[howdah.Secret](c, "token"), TokenFile: get[string](c, "token_file"),
		RequestTimeout:    c.duration("request_timeout_ms"),
		EnqueueMiddleware: []func(howdah.EnqueueFunc) howdah.EnqueueFunc{tracing.Enqueue},
	}
	if files := get[map[string]string](c, "tls"); files != nil {
		if cfg.TLS, err = howdah.TLSFiles(files["ca"], files["cert"], files["key"]); err != nil {
			return err
		}
	}
	if get[bool](c, "middleware") {
		cfg.EnqueueMiddleware = append(cfg.EnqueueMiddleware, func(next howdah.EnqueueFunc) howdah.EnqueueFunc {
			return func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
				for _, job := range jobs {
					proto.Merge(job, &howdahv1.NewJob{Headers: map[string]string{"conformance": "enqueue"}})
				}
				return next(ctx, jobs)
			}
		})
	}
	client, err := howdah.New(cfg)
	if err == nil {
		_ = client.Ping(context.Background()) // Ignores an error: later calls return it too.
		clients.Store(get[string](c, "client"), connected{client, get[bool](c, "middleware")})
	}
	return err
}

func newJobs(c command) (jobs []*howdahv1.NewJob, err error) {
	for _, text := range get[[]json.RawMessage](c, "jobs") {
		job := &howdahv1.NewJob{}
		err = errors.Join(err, protojson.Unmarshal(text, job))
		jobs = append(jobs, job)
	}
	return jobs, err
}

func enqueued(jobs []*howdahv1.EnqueuedJob) (answers []object) {
	for _, job := range jobs {
		outcome := strings.ToLower(strings.TrimPrefix(job.Outcome.String(), "ENQUEUE_OUTCOME_"))
		answers = append(answers, object{"id": strconv.FormatInt(job.Id, 10), "is_new": job.IsNew, "outcome": outcome})
	}
	return answers
}

func enqueue(client connected, c command) (object, error) {
	parent := propagation.MapCarrier{"traceparent": get[string](c, "traceparent")}
	ctx := propagation.TraceContext{}.Extract(context.Background(), parent)
	jobs, err := newJobs(c)
	if err != nil {
		return nil, err
	}
	done := make([]*howdahv1.EnqueuedJob, 1)
	if key := get[string](c, "request_key"); key != "" {
		done, err = client.EnqueueWithKey(ctx, key, jobs...)
	} else if len(jobs) == 1 {
		done[0], err = client.Enqueue(ctx, jobs[0].TaskType, nil, func(job *howdahv1.NewJob) { proto.Merge(job, jobs[0]) })
	} else {
		done, err = client.EnqueueAll(ctx, jobs...)
	}
	if err != nil {
		return nil, err
	}
	return object{"jobs": enqueued(done)}, nil
}

func produce(client connected, c command) (object, error) {
	jobs, err := newJobs(c)
	producer := client.NewProducer(howdah.ProducerConfig{
		MaxInFlight: get[int](c, "max_in_flight"), MaxBatchJobs: get[int](c, "max_batch_jobs"),
	})
	defer producer.Close()
	receipts := make([]*howdah.Receipt, len(jobs))
	for i := 0; i < len(jobs) && err == nil; i++ {
		receipts[i], err = producer.Submit(context.Background(), jobs[i])
	}
	if err != nil {
		return nil, err
	}
	var results []object
	for _, receipt := range receipts {
		done, err := receipt.Wait(context.Background())
		if results = append(results, enqueued(done)...); err != nil {
			results = append(results, object{"error": problem(err)})
		}
	}
	return object{"results": results}, nil
}

func wait(client connected, c command) (object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.duration("timeout_ms"))
	defer cancel()
	var ids []int64
	for _, id := range get[[]string](c, "ids") {
		number, _ := strconv.ParseInt(id, 10, 64)
		ids = append(ids, number)
	}
	jobs := []json.RawMessage{}
	for job, err := range client.Wait(ctx, ids...) {
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, message(job))
	}
	return object{"jobs": jobs}, nil
}

func call(client connected, c command) (object, error) {
	name := get[string](c, "method")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(name, "/", ".")))
	if err != nil {
		return nil, err
	}
	method := found.(protoreflect.MethodDescriptor)
	input, _ := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	output, _ := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	in, out := input.New().Interface(), output.New().Interface()
	if err := protojson.Unmarshal(c["request"], in); err != nil {
		return nil, err
	}
	if !method.IsStreamingServer() {
		err = client.Invoke(context.Background(), "/"+name, in, out)
		return object{"responses": []json.RawMessage{message(out)}}, err
	}
	stream, err := client.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/"+name)
	if err == nil {
		err = errors.Join(stream.SendMsg(in), stream.CloseSend())
	}
	answers := []json.RawMessage{}
	for ; err == nil; answers = append(answers, message(out)) {
		if err = stream.RecvMsg(out); err != nil {
			break
		}
	}
	if err == io.EOF {
		err = nil
	}
	return object{"responses": answers}, err
}

func work(client connected, c command) (object, error) {
	name := get[string](c, "worker")
	middleware := []func(howdah.Handler) howdah.Handler{tracing.Handle}
	if client.around {
		middleware = append(middleware, around)
	}
	total := 0
	for _, taskType := range get[[]command](c, "types") {
		total += get[int](taskType, "concurrency")
	}
	worker := client.NewWorker(howdah.WorkerConfig{
		Concurrency: total, WindowBytes: get[int64](c, "window_bytes"), MaxMessageBytes: get[int](c, "max_message_bytes"), Middleware: middleware,
		StopTimeout: c.duration("stop_timeout_ms"), Liveness: c.duration("liveness_ms"), Labels: get[map[string]string](c, "labels"),
	})
	for _, taskType := range get[[]command](c, "types") {
		handler := func(ctx context.Context, job *howdah.Job) ([]byte, error) {
			value, err := handle(ctx, name, job, nil)
			if text, ok := value.(json.RawMessage); ok {
				value = []byte(text)
			}
			result, _ := value.([]byte)
			return result, err
		}
		if get[string](taskType, "payload") == "json" {
			handler = howdah.JSON(func(ctx context.Context, job *howdah.Job, value json.RawMessage) (any, error) {
				return handle(ctx, name, job, value)
			})
		}
		worker.Handle(get[string](taskType, "name"), handler, get[int](taskType, "concurrency"))
	}
	ctx, cancel := context.WithCancel(context.Background())
	gone, onSigterm := make(chan struct{}), get[bool](c, "on_sigterm")
	workers.Store(name, func() { cancel(); <-gone })
	runWorker := worker.Run
	if onSigterm {
		runWorker = worker.RunUntilSignal
	}
	go func() {
		event := object{"event": "ended", "worker": name}
		if err := runWorker(ctx); err != nil {
			event["error"] = problem(err)
		}
		writeLine(event)
		close(gone)
		if onSigterm {
			os.Exit(0)
		}
	}()
	return object{}, nil
}

func takeSpans() (found []object) {
	for _, span := range spans.GetSpans() {
		attributes, links, parent := object{}, []object{}, ""
		for _, attribute := range span.Attributes {
			attributes[string(attribute.Key)] = attribute.Value.AsInterface()
		}
		for _, link := range span.Links {
			linked := link.SpanContext
			links = append(links, object{"trace_id": linked.TraceID().String(), "span_id": linked.SpanID().String()})
		}
		if span.Parent.IsValid() {
			parent = span.Parent.SpanID().String()
		}
		found = append(found, object{
			"name": span.Name, "kind": span.SpanKind.String(), "parent_id": parent, "links": links,
			"trace_id": span.SpanContext.TraceID().String(), "span_id": span.SpanContext.SpanID().String(),
			"status": strings.ToLower(span.Status.Code.String()), "attributes": attributes,
		})
	}
	spans.Reset()
	return found
}

func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}
