package howdah_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

func TestARefusalHasCodeReasonFieldAndText(t *testing.T) {
	t.Parallel()
	_, err := connect(t).Enqueue(t.Context(), "no spaces", nil)
	var refused *howdah.Error
	if !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if refused.Code != codes.InvalidArgument || refused.Reason != "INVALID_FIELD" || refused.Field != "jobs[0].task_type" ||
		!strings.Contains(err.Error(), "no spaces") || refused.IsRetryable() || status.Code(err) != codes.InvalidArgument {
		t.Errorf("%#v", refused)
	}
	_, err = howdahv1.NewJobServiceClient(connect(t)).GetJob(t.Context(), &howdahv1.GetJobRequest{Id: 1 << 60})
	if !errors.Is(err, howdah.ErrNotFound) || errors.Is(err, howdah.ErrBacklogFull) {
		t.Error(err)
	}
	for _, err := range connect(t).Wait(t.Context(), 1<<60) {
		if !errors.Is(err, howdah.ErrNotFound) {
			t.Error(err)
		}
	}
}

func TestARequestKeyMakesItSafeToRepeat(t *testing.T) {
	t.Parallel()
	client := connect(t)
	job, err := howdah.NewJob(typeName(t), "one")
	must(t, err)
	first, err := client.EnqueueWithKey(t.Context(), typeName(t), job)
	must(t, err)
	second, err := client.EnqueueWithKey(t.Context(), typeName(t), job)
	must(t, err)
	if first[0].Id != second[0].Id || second[0].IsNew {
		t.Error(second)
	}
	job.Payload = []byte("two")
	if _, err = client.EnqueueWithKey(t.Context(), typeName(t), job); !errors.Is(err, howdah.ErrAlreadyExists) {
		t.Error(err)
	}
}

func TestOptionsReachTheBroker(t *testing.T) {
	t.Parallel()
	client := connect(t)
	first, err := client.Enqueue(t.Context(), typeName(t), 1, howdah.Key("k"), howdah.Delay(time.Hour),
		howdah.Tags("old"), howdah.MaxAttempts(3), howdah.Priority(-5))
	must(t, err)
	second, err := client.Enqueue(t.Context(), typeName(t), 2, howdah.RunAt(time.Now().Add(time.Hour)),
		howdah.Key("k", howdahv1.KeyPolicy_KEY_POLICY_REPLACE), howdah.ExpireAfter(2*time.Hour), howdah.Tags("batch-17", "ü"))
	must(t, err)
	if second.Id != first.Id || second.Outcome != howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_REPLACED {
		t.Error(second)
	}
	if job := state(t, first.Id); job.State != howdahv1.JobState_JOB_STATE_SCHEDULED || string(job.Payload) != "2" {
		t.Error(job)
	} else if !slices.Equal(job.Tags, []string{"batch-17", "ü"}) {
		t.Error(job.Tags)
	}
	last, err := client.Enqueue(t.Context(), typeName(t), 3, howdah.After(first.Id), howdah.Priority(7), howdah.MaxAttempts(4),
		howdah.Header("from", "test"), howdah.LimitKey("l"), howdah.LimitMax(2), howdah.FairKey("f"), howdah.NextStages("a", "b"))
	must(t, err)
	job := state(t, last.Id)
	if job.State != howdahv1.JobState_JOB_STATE_WAITING || !slices.Equal(job.After, []int64{first.Id}) || job.Priority != 7 ||
		job.MaxAttempts != 4 || job.Headers["from"] != "test" || job.LimitKey != "l" || job.LimitMax != 2 || job.FairKey != "f" ||
		!slices.Equal(job.NextStages, []string{"a", "b"}) {
		t.Error(job)
	}
}

func TestTheRetryOptionsSetTheDelaysAfterFailures(t *testing.T) {
	t.Parallel()
	client := connect(t)
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), func(context.Context, *howdah.Job) ([]byte, error) { return nil, errors.New("broken") })
	run(t, worker)
	var ids []int64
	for _, quick := range []howdah.Option{
		howdah.RetryDelays(0, time.Millisecond), howdah.Backoff(time.Millisecond, 2*time.Millisecond),
	} {
		job, err := client.Enqueue(t.Context(), typeName(t), nil, quick, howdah.MaxAttempts(3), howdah.Fallback(typeName(t)+".dead"))
		must(t, err)
		ids = append(ids, job.Id)
	}
	rest := client.NewWorker(howdah.WorkerConfig{})
	rest.Handle(typeName(t)+".dead", func(context.Context, *howdah.Job) ([]byte, error) { return nil, nil })
	run(t, rest)
	for _, id := range ids {
		if job := ended(t, client, id); len(job.Failures) != 3 || job.OriginalTaskType != typeName(t) {
			t.Error(job)
		}
	}
}

func TestAnEnqueueTriesTheNextAddressAndThenWaitsForABroker(t *testing.T) {
	t.Parallel()
	closed, later := newProxy(t), newProxy(t)
	closed.set(true)
	later.set(true)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{closed.address() + "," + later.address()} })
	done := make(chan error)
	go func() {
		_, err := client.Enqueue(t.Context(), typeName(t), nil)
		done <- err
	}()
	later.set(false)
	must(t, <-done)
}

func TestAProducerStoresAllJobsOnceThoughItsStreamBreaks(t *testing.T) {
	t.Parallel()
	way := newProxy(t)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{way.address()} })
	producer := client.NewProducer(howdah.ProducerConfig{MaxBatchJobs: 10, MaxInFlight: 3})
	var receipts []*howdah.Receipt
	for i := range 500 {
		job, err := howdah.NewJob(typeName(t), i)
		must(t, err)
		receipt, err := producer.Submit(t.Context(), job)
		must(t, err)
		receipts = append(receipts, receipt)
		if i%100 == 50 {
			way.set(false)
		}
	}
	ids := map[int64]bool{}
	for _, receipt := range receipts {
		answer, err := receipt.Wait(t.Context())
		must(t, err)
		ids[answer[0].Id] = answer[0].IsNew
	}
	must(t, producer.Close())
	types := howdahv1.NewTaskTypeServiceClient(connect(t))
	answer, err := types.ListTaskTypes(t.Context(), &howdahv1.ListTaskTypesRequest{TaskType: typeName(t)})
	must(t, err)
	if len(ids) != 500 || answer.TaskTypes[0].Counts.Ready != 500 {
		t.Errorf("%d ids, %v", len(ids), answer)
	}
	if _, err := producer.Enqueue(t.Context(), typeName(t), nil); !errors.Is(err, howdah.ErrClosed) {
		t.Error(err)
	}
}

func TestAProducerFailsOnlyTheJobsThatTheBrokerRefuses(t *testing.T) {
	t.Parallel()
	producer := connect(t).NewProducer(howdah.ProducerConfig{})
	defer producer.Close()
	var receipts []*howdah.Receipt
	for i := range 20 {
		taskType := typeName(t)
		if i%5 == 0 {
			taskType = "no spaces"
		}
		receipt, err := producer.Submit(t.Context(), &howdahv1.NewJob{TaskType: taskType})
		must(t, err)
		receipts = append(receipts, receipt)
	}
	must(t, producer.Flush(t.Context()))
	for i, receipt := range receipts {
		_, err := receipt.Wait(t.Context())
		var refused *howdah.Error
		if i%5 == 0 && (!errors.As(err, &refused) || refused.Field != "jobs[0].task_type") || i%5 != 0 && err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestSubmittingWaitsWhileTheQueueIsFull(t *testing.T) {
	t.Parallel()
	way := newProxy(t)
	way.set(true)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers, cfg.RequestTimeout = []string{way.address()}, time.Second })
	producer := client.NewProducer(howdah.ProducerConfig{MaxQueuedBytes: 1000})
	receipt, err := producer.Submit(t.Context(), &howdahv1.NewJob{TaskType: typeName(t), Payload: make([]byte, 1000)})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := producer.Submit(ctx, &howdahv1.NewJob{TaskType: typeName(t)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := receipt.Wait(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	must(t, producer.Close())
}

func TestConcurrentFlushesReturn(t *testing.T) {
	t.Parallel()
	producer := connect(t).NewProducer(howdah.ProducerConfig{MaxQueuedBytes: 1000})
	defer producer.Close()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				_, err := producer.Submit(within(t, time.Minute), &howdahv1.NewJob{TaskType: typeName(t)})
				if err = errors.Join(err, producer.Flush(within(t, time.Minute))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestMiddlewareIsAroundEveryEnqueue(t *testing.T) {
	t.Parallel()
	var seen []string
	wrap := func(name string) func(howdah.EnqueueFunc) howdah.EnqueueFunc {
		return func(next howdah.EnqueueFunc) howdah.EnqueueFunc {
			return func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
				seen = append(seen, name)
				return next(ctx, jobs)
			}
		}
	}
	client := connect(t, func(cfg *howdah.Config) {
		cfg.EnqueueMiddleware = []func(howdah.EnqueueFunc) howdah.EnqueueFunc{wrap("outer"), wrap("inner")}
	})
	_, err := client.Enqueue(t.Context(), typeName(t), nil)
	must(t, err)
	producer := client.NewProducer(howdah.ProducerConfig{})
	_, err = producer.Enqueue(t.Context(), typeName(t), nil)
	must(t, errors.Join(err, producer.Close()))
	if fmt.Sprint(seen) != "[outer inner outer inner]" {
		t.Error(seen)
	}
}

func TestATokenIsNeverShown(t *testing.T) {
	t.Parallel()
	cfg := howdah.Config{Token: "hwd_s3cret"}
	text, err := json.Marshal(cfg.Token)
	must(t, err)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "cfg", cfg)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", cfg.Token)
	if all := fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, text) + log.String(); strings.Contains(all, "s3cret") {
		t.Error(all)
	}
}

func TestATokenGoesInPlainTextToThisMachineOnlyUnlessThatIsSaid(t *testing.T) {
	t.Parallel()
	for address, fine := range map[string]bool{
		"127.0.0.1:7432": true, "http://127.8.8.8:7432": true, "[::1]:7432": true, "http://LocalHost": true, "https://broker": true,
		"broker:7432": false, "http://10.0.0.1:7432": false, "localhost.example": false, "127.0.0.1.example": false,
	} {
		for _, insecure := range []bool{false, true} {
			client, err := howdah.New(howdah.Config{Servers: []string{address}, Token: "hwd_x", InsecureToken: insecure})
			if (err == nil) != (fine || insecure) {
				t.Errorf("%s: %v", address, err)
			}
			if err == nil {
				client.Close()
			}
		}
	}
	for _, address := range []string{"", "postgres://broker", "http://", "a b"} {
		if _, err := howdah.New(howdah.Config{Servers: []string{address}}); err == nil {
			t.Errorf("%q", address)
		}
	}
}

func TestAJobThatIsTooLargeForAMessageFailsAlone(t *testing.T) {
	t.Parallel()
	client := connect(t, func(cfg *howdah.Config) { cfg.MaxMessageBytes = 64 << 10 })
	producer := client.NewProducer(howdah.ProducerConfig{MaxBatchJobs: 2})
	var receipts []*howdah.Receipt
	for i := range 20 {
		payload := make([]byte, 10)
		if i == 7 {
			payload = make([]byte, 100<<10)
		}
		receipt, err := producer.Submit(t.Context(), &howdahv1.NewJob{TaskType: typeName(t), Payload: payload})
		must(t, err)
		receipts = append(receipts, receipt)
	}
	must(t, producer.Close())
	for i, receipt := range receipts {
		if _, err := receipt.Wait(t.Context()); (i == 7) != (status.Code(err) == codes.ResourceExhausted) || i != 7 && err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}
