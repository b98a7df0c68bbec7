// The adapter of the Go client for howdah-conformance. It reads commands as JSON lines from standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
	"howdah.dev/go/otelhowdah"
)

type object = map[string]any

// command is a line from the conformance runner.
type command map[string]json.RawMessage

// get returns a field, or the zero value if it is missing.
func get[T any](c command, field string) (value T) {
	_ = json.Unmarshal(c[field], &value)
	return value
}

func (c command) duration(field string) time.Duration {
	return time.Duration(get[int64](c, field)) * time.Millisecond
}

var (
	// Clients and workers by name; running handlers by run number.
	clients, workers, runs sync.Map
	spans                  = tracetest.NewInMemoryExporter()
	tracing                = otelhowdah.New(trace.NewTracerProvider(trace.WithSyncer(spans)))
	output                 sync.Mutex
)

func writeLine(line object) {
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(text))
}

func message(m proto.Message) json.RawMessage {
	text, _ := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	return text
}

var words = regexp.MustCompile("([a-z])([A-Z])")

func problem(err error) object {
	var e *howdah.Error
	if !errors.As(howdah.AsError(err), &e) {
		e = &howdah.Error{Code: codes.Unknown}
	}
	code := strings.ToUpper(words.ReplaceAllString(strings.Replace(e.Code.String(), "Canceled", "Cancelled", 1), "${1}_$2"))
	after := e.RetryAfter.Milliseconds()
	return object{"code": code, "reason": e.Reason, "field": e.Field, "message": err.Error(), "retry_after_ms": after}
}

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for lines := bufio.NewReader(os.Stdin); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var c command
		_ = json.Unmarshal(line, &c)
		go func() {
			if ok, err := execute(c); err != nil {
				writeLine(object{"id": c["id"], "error": problem(err)})
			} else {
				writeLine(object{"id": c["id"], "ok": ok})
			}
		}()
	}
}

func execute(c command) (object, error) {
	switch do := get[string](c, "do"); do {
	case "hello":
		return object{"protocol": 1, "client": "howdah-go/" + howdah.Version, "pid": os.Getpid()}, nil
	case "connect":
		return object{}, connect(c)
	case "spans":
		return object{"spans": takeSpans()}, nil
	case "stop":
		if stop, ok := workers.Load(get[string](c, "worker")); ok {
			stop.(func())()
			return object{}, nil
		}
	case "results":
		if r, ok := runs.Load(get[int](c, "run")); ok {
			return r.(*run).results()
		}
	case "finish", "progress", "extend":
		if r, ok := runs.Load(get[int](c, "run")); ok {
			return object{}, r.(*run).execute(do, c)
		}
	default:
		client, ok := clients.Load(get[string](c, "client"))
		if does := calls[do]; does == nil {
			return nil, &howdah.Error{Code: codes.Unimplemented}
		} else if ok {
			return does(client.(connected), c)
		}
	}
	return nil, &howdah.Error{Code: codes.NotFound}
}

// run is a handler that waits for the command `finish`.
type run struct {
	job    *howdah.Job
	finish chan command
}

func (r *run) execute(do string, c command) error {
	switch do {
	case "finish":
		r.finish <- c
		return nil
	case "extend":
		return r.job.Extend(context.Background(), c.duration("duration_ms"))
	}
	return r.job.Report(context.Background(), &howdahv1.ProgressReport{
		Fraction: get[*float64](c, "fraction"), Text: get[*string](c, "text"), Checkpoint: get[[]byte](c, "checkpoint"),
	})
}

func (r *run) results() (object, error) {
	results := []json.RawMessage{}
	for result, err := range r.job.Results(context.Background()) {
		if err != nil {
			return nil, err
		}
		results = append(results, message(result))
	}
	return object{"dependencies": results}, nil
}

// connected is a client for the conformance runner, with a flag whether middleware wraps its handlers.
type connected struct {
	*howdah.Client
	around bool
}

func around(next howdah.Handler) howdah.Handler {
	return func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		id := strconv.FormatInt(job.Id, 10)
		writeLine(object{"event": "around", "at": "before", "job": id})
		defer writeLine(object{"event": "around", "at": "after", "job": id})
		return next(ctx, job)
	}
}

func handle(ctx context.Context, worker string, job *howdah.Job, value json.RawMessage) (any, error) {
	r := &run{job, make(chan command, 100)}
	id := int(numbers.Add(1))
	runs.Store(id, r)
	started := object{"event": "started", "worker": worker, "run": id, "job": message(job.LeasedJob), "json": value}
	started["trace"] = traceparent(ctx)
	writeLine(started)
	select {
	case c := <-r.finish:
		return outcome(c)
	case <-ctx.Done():
	}
	var cause *howdah.Error
	errors.As(context.Cause(ctx), &cause)
	reason := strings.Replace(strings.ToLower(cause.Reason), "stopping", "stop", 1)
	writeLine(object{"event": "cancelled", "worker": worker, "run": id, "reason": reason})
	return outcome(<-r.finish)
}

func outcome(c command) (any, error) {
	time.Sleep(c.duration("block_ms"))
	after, text := c.duration("after_ms"), get[string](c, "error")
	switch get[string](c, "outcome") {
	case "ok":
		if value, ok := c["json"]; ok {
			return value, nil
		}
		return get[[]byte](c, "result"), nil
	case "next":
		return get[[]byte](c, "result"), howdah.NextStage(get[string](c, "next_stage"))
	case "fatal":
		return nil, howdah.Fatal(errors.New(text))
	case "snooze":
		return nil, howdah.Snooze(after)
	case "release":
		return nil, howdah.Release()
	case "throw":
		panic(text)
	}
	if c["after_ms"] != nil {
		return nil, howdah.RetryAfter(after, errors.New(text))
	}
	return nil, errors.New(text)
}
