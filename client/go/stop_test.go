package howdah_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// held is a worker with one running job. Its handler returns the error that the test sends to the channel end.
type held struct {
	id     int64
	stop   func() error
	causes chan error
	end    chan error
	client *howdah.Client
}

func hold(t *testing.T, client *howdah.Client, cfg howdah.WorkerConfig) *held {
	t.Helper()
	h := &held{causes: make(chan error, 10), end: make(chan error), client: client}
	started := make(chan int64)
	worker := client.NewWorker(cfg)
	worker.Handle(typeName(t), func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		started <- job.Id
		select {
		case <-ctx.Done():
			h.causes <- context.Cause(ctx)
		case err := <-h.end:
			return nil, err
		}
		return nil, <-h.end
	}, 1)
	h.stop = run(t, worker)
	// The job is enqueued by a separate client, because the test may cut the connections of the worker's client.
	_, err := connect(t).Enqueue(t.Context(), typeName(t), nil)
	must(t, err)
	h.id = <-started
	return h
}

func state(t *testing.T, id int64) *howdahv1.Job {
	t.Helper()
	answer, err := howdahv1.NewJobServiceClient(connect(t)).GetJob(t.Context(), &howdahv1.GetJobRequest{Id: id})
	must(t, err)
	return answer.Job
}

func TestAStopWaitsForTheHandlerAndStoresItsOutcome(t *testing.T) {
	t.Parallel()
	h := hold(t, connect(t), howdah.WorkerConfig{})
	stopped := make(chan error)
	go func() { stopped <- h.stop() }()
	select {
	case <-stopped:
		t.Fatal("the worker did not wait")
	case h.end <- nil:
	}
	must(t, <-stopped)
	if job := state(t, h.id); job.State != howdahv1.JobState_JOB_STATE_SUCCEEDED || job.Attempt != 1 {
		t.Error(job)
	}
}

func TestAHandlerThatIsToldToStopMayReturnTheErrorOfItsContext(t *testing.T) {
	t.Parallel()
	h := hold(t, connect(t), howdah.WorkerConfig{StopTimeout: time.Millisecond})
	go func() {
		if cause := <-h.causes; !errors.Is(cause, howdah.ErrStopping) {
			t.Error(cause)
		}
		h.end <- context.Canceled
	}()
	must(t, h.stop())
	if job := state(t, h.id); job.State != howdahv1.JobState_JOB_STATE_READY || job.Attempt != 0 {
		t.Error(job)
	}
}

func TestTheJobOfAHandlerThatDoesNotStopIsReleasedAndRunSaysSo(t *testing.T) {
	t.Parallel()
	h := hold(t, connect(t), howdah.WorkerConfig{StopTimeout: time.Millisecond})
	if err := h.stop(); err == nil {
		t.Error("Run hides that a handler runs")
	}
	if job := state(t, h.id); job.State != howdahv1.JobState_JOB_STATE_READY || job.Attempt != 0 {
		t.Error(job)
	}
	h.end <- nil
}

func TestAWorkerWhoseStreamBreaksGoesOnWithItsJob(t *testing.T) {
	t.Parallel()
	way := newProxy(t)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{way.address()} })
	h := hold(t, client, howdah.WorkerConfig{})
	way.set(false)
	h.end <- nil
	if job := ended(t, connect(t), h.id); job.State != howdahv1.JobState_JOB_STATE_SUCCEEDED || job.Attempt != 1 {
		t.Error(job)
	}
	must(t, h.stop())
}

func TestAWorkerGoesOnAtTheNextAddress(t *testing.T) {
	t.Parallel()
	first := newProxy(t)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{first.address(), newProxy(t).address()} })
	h := hold(t, client, howdah.WorkerConfig{})
	first.set(true)
	h.end <- nil
	if job := ended(t, connect(t), h.id); job.State != howdahv1.JobState_JOB_STATE_SUCCEEDED || job.Attempt != 1 {
		t.Error(job)
	}
	must(t, h.stop())
}

func TestThePausesBetweenReconnectsGrowWhileNoBrokerAnswers(t *testing.T) {
	t.Parallel()
	way, pauses, stored := newProxy(t), make(chan time.Duration, 100), make(chan settled, 1)
	log := writerFunc(func(line []byte) (int, error) {
		var fields struct{ Wait time.Duration }
		if err := json.Unmarshal(line, &fields); err == nil && fields.Wait > 0 {
			pauses <- fields.Wait
		}
		return len(line), nil
	})
	client := connect(t, func(cfg *howdah.Config) {
		cfg.Servers, cfg.Logger = []string{way.address()}, slog.New(slog.NewJSONHandler(log, nil))
	})
	worker := client.NewWorker(howdah.WorkerConfig{Middleware: watching(stored)})
	worker.Handle(typeName(t), func(context.Context, *howdah.Job) ([]byte, error) { return nil, nil })
	run(t, worker)
	_, err := connect(t).Enqueue(t.Context(), typeName(t), nil)
	must(t, err)
	must(t, (<-stored).err) // The stream has shown that the broker works, so the first pause is short.
	way.set(true)
	for least := 25 * time.Millisecond; least <= 400*time.Millisecond; least *= 2 {
		if pause := <-pauses; pause < least || pause > 2*least {
			t.Errorf("a pause of %v; expected %v to %v", pause, least, 2*least)
		}
	}
}

func TestAWorkerWithoutABrokerStops(t *testing.T) {
	t.Parallel()
	way := newProxy(t)
	way.set(true)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{way.address()} })
	must(t, run(t, failing(t, client))())
}

func TestAWorkerWithoutHandlersDoesNotRun(t *testing.T) {
	t.Parallel()
	err := connect(t).NewWorker(howdah.WorkerConfig{}).Run(within(t, 20*time.Second))
	if err == nil || !strings.Contains(err.Error(), "the worker has no handlers") {
		t.Error(err)
	}
}

func TestAWorkerThatTheBrokerRefusesEndsWithTheError(t *testing.T) {
	t.Parallel()
	worker := connect(t).NewWorker(howdah.WorkerConfig{})
	worker.Handle("no spaces", func(context.Context, *howdah.Job) ([]byte, error) { return nil, nil })
	err := worker.Run(within(t, 20*time.Second))
	var refused *howdah.Error
	if !errors.As(err, &refused) || refused.Reason != "INVALID_FIELD" || refused.Field != "windows[0].task_type" {
		t.Errorf("%#v", err)
	}
}
