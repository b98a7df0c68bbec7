package howdah_test

import (
	"context"
	"errors"
	"testing"
	"time"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// settled holds the arguments of an OnSettled function.
type settled struct {
	broker  string
	outcome *howdahv1.Outcome
	err     error
}

// watching returns middleware that sends the broker's answer to each outcome to the channel found.
func watching(found chan<- settled) []func(howdah.Handler) howdah.Handler {
	return []func(howdah.Handler) howdah.Handler{func(next howdah.Handler) howdah.Handler {
		return func(ctx context.Context, job *howdah.Job) ([]byte, error) {
			result, err := next(ctx, job)
			howdah.OnSettled(ctx, func(broker string, outcome *howdahv1.Outcome, err error) {
				found <- settled{broker, outcome, err}
			})
			return result, err
		}
	}}
}

func reason(err error) string {
	var e *howdah.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Reason
}

func TestMiddlewareLearnsWhatTheBrokerConfirmedOfAnOutcomeThatItRefused(t *testing.T) {
	t.Parallel()
	found := make(chan settled, 1)
	h := hold(t, connect(t), howdah.WorkerConfig{Middleware: watching(found)})
	h.end <- howdah.NextStage("no spaces")
	got := <-found
	if got.err != nil || got.outcome.GetNack() == nil || got.broker != "http://"+broker.Address {
		t.Error(got)
	}
}

func TestMiddlewareLearnsThatTheLeaseWasLostBeforeTheOutcomeArrived(t *testing.T) {
	t.Parallel()
	found := make(chan settled, 1)
	way := newProxy(t)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{way.address()} })
	h := hold(t, client, howdah.WorkerConfig{Middleware: watching(found)})
	way.set(true)
	_, err := howdahv1.NewJobServiceClient(connect(t)).CancelJobs(t.Context(), &howdahv1.CancelJobsRequest{Ids: []int64{h.id}})
	must(t, err)
	h.end <- nil
	way.set(false)
	if got := <-found; !errors.Is(got.err, howdah.ErrLeaseLost) || got.outcome.GetAck() == nil {
		t.Error(got)
	}
}

func TestMiddlewareLearnsThatAnOutcomeWasNeverConfirmed(t *testing.T) {
	t.Parallel()
	found := make(chan settled, 1)
	way := newProxy(t)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{way.address()} })
	h := hold(t, client, howdah.WorkerConfig{Middleware: watching(found), StopTimeout: time.Millisecond})
	way.set(true)
	h.end <- nil
	if h.stop() == nil {
		t.Error("Run hides that an outcome is not confirmed")
	}
	if got := <-found; reason(got.err) != "UNCONFIRMED" || got.outcome.GetAck() == nil {
		t.Error(got)
	}
}

func TestOutsideOfAClientMiddlewareLearnsNothing(t *testing.T) {
	t.Parallel()
	never := func(string, []*howdahv1.EnqueuedJob, error) { t.Error("called") }
	isEnqueue := howdah.OnEnqueued(t.Context(), never)
	isHandler := howdah.OnSettled(t.Context(), func(string, *howdahv1.Outcome, error) { t.Error("called") })
	if isEnqueue || isHandler || howdah.BrokerOf(t.Context()) != "" {
		t.Error(isEnqueue, isHandler)
	}
}

func TestMiddlewareLearnsTheAnswerOfASubmissionAndWhoGaveIt(t *testing.T) {
	t.Parallel()
	type answer struct {
		broker string
		jobs   []*howdahv1.EnqueuedJob
		err    error
	}
	found := make(chan answer, 1)
	watch := func(next howdah.EnqueueFunc) howdah.EnqueueFunc {
		return func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
			howdah.OnEnqueued(ctx, func(broker string, jobs []*howdahv1.EnqueuedJob, err error) {
				found <- answer{broker, jobs, err}
			})
			return next(ctx, jobs)
		}
	}
	client := connect(t, func(cfg *howdah.Config) {
		cfg.EnqueueMiddleware = []func(howdah.EnqueueFunc) howdah.EnqueueFunc{watch}
	})
	check := func(stored []*howdahv1.EnqueuedJob, err error) {
		t.Helper()
		must(t, err)
		got := <-found
		if got.err != nil || len(got.jobs) != 1 || got.jobs[0].Id != stored[0].Id || got.broker != "http://"+broker.Address {
			t.Error(got)
		}
	}
	job := &howdahv1.NewJob{TaskType: typeName(t)}
	check(client.EnqueueAll(t.Context(), job))
	producer := client.NewProducer(howdah.ProducerConfig{})
	check(producer.EnqueueAll(t.Context(), job))
	receipt, err := producer.Submit(t.Context(), job)
	must(t, err)
	check(receipt.Wait(t.Context()))
	must(t, producer.Close())
	_, err = producer.Submit(t.Context(), job)
	if got := <-found; !errors.Is(err, howdah.ErrClosed) || !errors.Is(got.err, howdah.ErrClosed) || got.broker != "" {
		t.Error(got, err)
	}
}
