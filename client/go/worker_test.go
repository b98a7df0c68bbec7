package howdah_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

type greeting struct {
	Name string `json:"name"`
}

func TestAJobRunsWithItsPayloadAndKeepsItsResult(t *testing.T) {
	t.Parallel()
	client := connect(t)
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), howdah.JSON(func(_ context.Context, _ *howdah.Job, in greeting) (string, error) {
		return "hello, " + in.Name, nil
	}))
	stop := run(t, worker)
	job, err := client.Enqueue(t.Context(), typeName(t), greeting{"mahout"})
	must(t, err)
	if !job.IsNew {
		t.Error("the job is not new")
	}
	done := ended(t, client, job.Id)
	if done.State != howdahv1.JobState_JOB_STATE_SUCCEEDED || string(done.Result) != `"hello, mahout"` {
		t.Errorf("%v", done)
	}
	must(t, stop())
}

func TestTheErrorOfAHandlerSaysWhatHappensToTheJob(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	succeeded, dead := howdahv1.JobState_JOB_STATE_SUCCEEDED, howdahv1.JobState_JOB_STATE_DEAD
	cases := map[string]struct {
		first    func() ([]byte, error)
		state    howdahv1.JobState
		attempts uint32
		errors   []string
	}{
		"ok":       {func() ([]byte, error) { return []byte("x"), nil }, succeeded, 1, nil},
		"fatal":    {func() ([]byte, error) { return nil, fmt.Errorf("really: %w", howdah.Fatal(broken)) }, dead, 1, []string{"really: broken"}},
		"retry":    {func() ([]byte, error) { return nil, howdah.RetryAfter(time.Millisecond, broken) }, succeeded, 2, []string{"broken"}},
		"snooze":   {func() ([]byte, error) { return nil, howdah.Snooze(time.Millisecond) }, succeeded, 1, nil},
		"release":  {func() ([]byte, error) { return nil, howdah.Release() }, succeeded, 1, nil},
		"panic":    {func() ([]byte, error) { panic("oh") }, succeeded, 2, []string{"the handler panicked: oh"}},
		"Goexit":   {func() ([]byte, error) { runtime.Goexit(); return nil, nil }, succeeded, 2, []string{"the handler ended its goroutine"}},
		"an error": {func() ([]byte, error) { return nil, broken }, succeeded, 2, []string{"broken"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := connect(t)
			var calls atomic.Int32
			worker := client.NewWorker(howdah.WorkerConfig{})
			worker.Handle(typeName(t), func(context.Context, *howdah.Job) ([]byte, error) {
				if calls.Add(1) == 1 {
					return c.first()
				}
				return nil, nil
			})
			run(t, worker)
			quick := &howdahv1.RetryPolicy{InitialDelay: durationpb.New(time.Millisecond)}
			job, err := client.Enqueue(t.Context(), typeName(t), nil, func(job *howdahv1.NewJob) { job.RetryPolicy = quick })
			must(t, err)
			done := ended(t, client, job.Id)
			var texts []string
			for _, failure := range done.Failures {
				texts = append(texts, failure.Error)
				if name == "panic" && (!strings.Contains(failure.Details, "goroutine ") || !strings.Contains(failure.Place, "TestTheErrorOfAHandler")) {
					t.Errorf("place %q, details %q", failure.Place, failure.Details)
				}
			}
			if done.State != c.state || done.Attempt != c.attempts || fmt.Sprint(texts) != fmt.Sprint(c.errors) {
				t.Errorf("state %v, attempt %d, errors %q", done.State, done.Attempt, texts)
			}
		})
	}
}

func TestAPayloadOfAnotherFormatIsFatal(t *testing.T) {
	t.Parallel()
	client := connect(t)
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), howdah.JSON(func(context.Context, *howdah.Job, greeting) (any, error) { return nil, nil }))
	run(t, worker)
	job, err := client.Enqueue(t.Context(), typeName(t), []byte("{"))
	must(t, err)
	if done := ended(t, client, job.Id); done.State != howdahv1.JobState_JOB_STATE_DEAD {
		t.Errorf("%v", done)
	}
}

func TestAProtobufPayloadIsDecoded(t *testing.T) {
	t.Parallel()
	client := connect(t)
	worker := client.NewWorker(howdah.WorkerConfig{})
	twice := func(_ context.Context, _ *howdah.Job, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
		return wrapperspb.String(in.Value + in.Value), nil
	}
	worker.Handle(typeName(t), howdah.Proto(twice))
	run(t, worker)
	job, err := client.Enqueue(t.Context(), typeName(t), wrapperspb.String("ab"))
	must(t, err)
	if done := ended(t, client, job.Id); string(done.Result) != "\x0a\x04abab" {
		t.Errorf("%q", done.Result)
	}
}

func TestACancelledJobEndsTheContextOfItsHandlerWhoseErrorIsThenNoFailure(t *testing.T) {
	t.Parallel()
	log, lines := jobLog()
	client := connect(t, func(cfg *howdah.Config) { cfg.Logger = log })
	started, cause := make(chan int64), make(chan error, 1)
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		started <- job.Id
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, ctx.Err()
	})
	stop := run(t, worker)
	_, err := client.Enqueue(t.Context(), typeName(t), nil)
	must(t, err)
	jobs := howdahv1.NewJobServiceClient(client)
	answer, err := jobs.CancelJobs(t.Context(), &howdahv1.CancelJobsRequest{Ids: []int64{<-started}})
	must(t, err)
	if len(answer.CancelledIds) != 1 {
		t.Error(answer)
	}
	if err := <-cause; !errors.Is(err, howdah.ErrCancelled) {
		t.Error(err)
	}
	must(t, stop())
	if len(lines()) != 0 {
		t.Error(lines())
	}
}

func TestADeadlineThatPassesEndsTheContextUnlessItIsExtended(t *testing.T) {
	t.Parallel()
	client := connect(t)
	cause := make(chan error, 1)
	var calls atomic.Int32
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		if calls.Add(1) == 1 {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil, nil
		}
		return nil, job.Extend(ctx, time.Minute)
	})
	run(t, worker)
	quick := &howdahv1.RetryPolicy{InitialDelay: durationpb.New(time.Millisecond)}
	job, err := client.Enqueue(t.Context(), typeName(t), nil, howdah.Timeout(200*time.Millisecond),
		func(job *howdahv1.NewJob) { job.RetryPolicy = quick })
	must(t, err)
	if err := <-cause; !errors.Is(err, howdah.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// On a slow machine, the deadline may pass before the handler starts or extends it. The job then needs more than
	// two attempts.
	if done := ended(t, client, job.Id); done.State != howdahv1.JobState_JOB_STATE_SUCCEEDED || done.Attempt < 2 {
		t.Error(done)
	}
}

func TestProgressAndCheckpointsAreStored(t *testing.T) {
	t.Parallel()
	client := connect(t)
	reported, goOn, checkpoint := make(chan int64), make(chan bool), make(chan string, 2)
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		checkpoint <- string(job.Checkpoint)
		if job.Attempt == 2 {
			return nil, nil
		}
		if err := errors.Join(job.Progress(ctx, 0.5, "half"), job.SaveCheckpoint(ctx, []byte("row 7"))); err != nil {
			return nil, howdah.Fatal(err)
		}
		reported <- job.Id
		<-goOn
		return nil, howdah.RetryAfter(0, errors.New("again"))
	})
	run(t, worker)
	_, err := client.Enqueue(t.Context(), typeName(t), nil)
	must(t, err)
	id := <-reported
	answer, err := howdahv1.NewJobServiceClient(client).GetJob(t.Context(), &howdahv1.GetJobRequest{Id: id})
	must(t, err)
	if p := answer.Job.Progress; p.GetFraction() != 0.5 || p.GetText() != "half" {
		t.Error(p)
	}
	close(goOn)
	ended(t, client, id)
	if first, second := <-checkpoint, <-checkpoint; first != "" || second != "row 7" {
		t.Errorf("%q, then %q", first, second)
	}
}

func TestEachFailedAttemptIsLoggedOnceWithJobTypeAndAttempt(t *testing.T) {
	t.Parallel()
	log, lines := jobLog()
	client := connect(t, func(cfg *howdah.Config) { cfg.Logger = log })
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), howdah.JSON(func(_ context.Context, _ *howdah.Job, how string) (any, error) {
		switch how {
		case "panic":
			panic("oh")
		case "exit":
			runtime.Goexit()
		}
		return nil, errors.New(how)
	}))
	stop := run(t, worker)
	want := map[string][]string{}
	for payload, text := range map[string]string{
		`"broken"`: "broken", `"panic"`: "the handler panicked: oh", `"exit"`: "the handler ended its goroutine",
		`{`: "the payload is not a string: unexpected end of JSON input",
	} {
		// The first attempt is a warning, unless it is not retried; the last one is an error.
		attempts := []string{"WARN " + typeName(t) + " 1 " + text, "ERROR " + typeName(t) + " 2 " + text}
		if payload == "{" {
			attempts = []string{"ERROR " + typeName(t) + " 1 " + text}
		}
		job, err := client.Enqueue(t.Context(), typeName(t), []byte(payload), howdah.MaxAttempts(2), howdah.RetryDelays(time.Millisecond))
		must(t, err)
		ended(t, client, job.Id)
		want[fmt.Sprint(job.Id)] = attempts
	}
	must(t, stop())
	if fmt.Sprint(lines()) != fmt.Sprint(want) {
		t.Errorf("%v\ninstead of %v", lines(), want)
	}
}

// jobLog returns a logger, and a function that returns the logged lines about jobs, by the id of the job.
func jobLog() (*slog.Logger, func() map[string][]string) {
	var mu sync.Mutex
	lines := map[string][]string{}
	log := writerFunc(func(line []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		var fields struct {
			Level, Type, Error string
			Job, Attempt       int64
		}
		if err := json.Unmarshal(line, &fields); err != nil {
			return 0, err
		}
		if fields.Job > 0 {
			key := fmt.Sprint(fields.Job)
			lines[key] = append(lines[key], fmt.Sprint(fields.Level, " ", fields.Type, " ", fields.Attempt, " ", fields.Error))
		}
		return len(line), nil
	})
	return slog.New(slog.NewJSONHandler(log, nil)), func() map[string][]string {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(lines)
	}
}

// writerFunc is a function as an [io.Writer].
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

func TestHandlersOfAllTypesShareTheConcurrencyOfTheWorker(t *testing.T) {
	t.Parallel()
	client := connect(t)
	var running, most atomic.Int32
	together := make(chan bool)
	worker := client.NewWorker(howdah.WorkerConfig{Concurrency: 2})
	handler := func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		if now := running.Add(1); now > most.Load() {
			most.Store(now)
		}
		defer running.Add(-1)
		if string(job.Payload) == "together" { // Ends only beside another handler.
			select {
			case together <- true:
			case <-together:
			}
		}
		return nil, nil
	}
	var ids []int64
	for i := range 3 {
		worker.Handle(typeName(t)+fmt.Sprint(i), handler)
		for range 6 {
			job, err := client.Enqueue(t.Context(), typeName(t)+fmt.Sprint(i), []byte("together"))
			must(t, err)
			ids = append(ids, job.Id)
		}
	}
	run(t, worker)
	for job, err := range client.Wait(within(t, time.Minute), ids...) {
		must(t, err)
		if job.State != howdahv1.JobState_JOB_STATE_SUCCEEDED {
			t.Error(job)
		}
	}
	if most.Load() != 2 {
		t.Errorf("%d handlers ran at once", most.Load())
	}
}

func TestJobsThatDoNotFitIntoTheConcurrencyGoToAnotherWorker(t *testing.T) {
	t.Parallel()
	client := connect(t)
	started, end := make(chan int64, 8), make(chan bool)
	defer close(end)
	busy := client.NewWorker(howdah.WorkerConfig{Concurrency: 1})
	idle := client.NewWorker(howdah.WorkerConfig{})
	ids := map[int64]bool{}
	enqueue := func() {
		for i := range 4 {
			job, err := client.Enqueue(t.Context(), typeName(t)+fmt.Sprint(i), nil)
			must(t, err)
			ids[job.Id] = true
		}
	}
	for i := range 4 {
		busy.Handle(typeName(t)+fmt.Sprint(i), func(_ context.Context, job *howdah.Job) ([]byte, error) {
			started <- job.Id
			<-end
			return nil, nil
		})
		idle.Handle(typeName(t)+fmt.Sprint(i), func(context.Context, *howdah.Job) ([]byte, error) { return nil, nil })
	}
	enqueue()
	run(t, busy)
	delete(ids, <-started)
	run(t, idle)
	enqueue()
	for id := range ids {
		if job := ended(t, client, id); job.Attempt != 1 {
			t.Error(job)
		}
	}
	if len(started) > 0 {
		t.Error("the busy worker runs a second job")
	}
}
