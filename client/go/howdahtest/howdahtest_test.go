package howdahtest_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
	"howdah.dev/go/howdahv1"
)

type order struct{ Number int }

func ship(ctx context.Context, job *howdah.Job, in order) (string, error) {
	if in.Number == 0 {
		return "", howdah.Fatal(errors.New("no number"))
	}
	if err := errors.Join(job.Progress(ctx, 0.5, "half"), job.Extend(ctx, time.Minute)); err != nil {
		return "", err
	}
	return "after " + string(job.Checkpoint), nil
}

func TestAHandlerIsPerformedWithoutABroker(t *testing.T) {
	done := howdahtest.Perform(t, howdah.JSON(ship), order{7}, func(job *howdahv1.LeasedJob) { job.Checkpoint = []byte("row 3") })
	if string(done.Result) != `"after row 3"` || done.Err != nil || done.Outcome.GetAck() == nil {
		t.Error(done)
	}
	if len(done.Reports) != 1 || done.Reports[0].GetFraction() != 0.5 || len(done.Extensions) != 1 {
		t.Error(done.Reports, done.Extensions)
	}
	done = howdahtest.Perform(t, howdah.JSON(ship), order{})
	if nack := done.Outcome.GetNack(); !nack.GetNoRetry() || nack.GetError() != "no number" {
		t.Error(done)
	}
}

func TestARecorderRemembersWhatWasEnqueued(t *testing.T) {
	recorder := &howdahtest.Recorder{}
	var jobs howdah.Enqueuer = recorder
	_, err := jobs.Enqueue(t.Context(), "order.ship", order{7}, howdah.Key("7"), howdah.Delay(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	recorder.AssertEnqueued(t, "order.ship", nil)
	recorder.AssertEnqueued(t, "order.ship", order{7}, howdah.Key("7"))
	for _, wrong := range []func(t testing.TB){
		func(t testing.TB) { recorder.AssertEnqueued(t, "order.bill", nil) },
		func(t testing.TB) { recorder.AssertEnqueued(t, "order.ship", order{8}) },
		func(t testing.TB) { recorder.AssertEnqueued(t, "order.ship", nil, howdah.Key("8")) },
	} {
		failing := &failures{TB: t}
		if wrong(failing); failing.count != 1 {
			t.Error("not noticed")
		}
	}
}

func TestARecorderRefusesWhatABrokerRefusesAndRecordsNothing(t *testing.T) {
	broker := howdahtest.StartBroker(t)
	client, err := howdah.New(howdah.Config{Servers: []string{broker.Address}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	recorder := &howdahtest.Recorder{}
	long := strings.Repeat("x", 201)
	for field, set := range map[string]howdah.Option{
		"task_type":      func(job *howdahv1.NewJob) { job.TaskType = "no spaces" },
		"payload":        func(job *howdahv1.NewJob) { job.Payload = make([]byte, 1<<20+1) },
		"headers":        howdah.Header("name", strings.Repeat("x", 8<<10)),
		"priority":       howdah.Priority(1001),
		"max_attempts":   howdah.MaxAttempts(1001),
		"delay":          howdah.Delay(-time.Second),
		"timeout":        howdah.Timeout(31 * 24 * time.Hour),
		"expire_after":   howdah.ExpireAfter(0),
		"key":            howdah.Key(long),
		"key_policy":     howdah.Key("", howdahv1.KeyPolicy_KEY_POLICY_REPLACE),
		"limit_key":      howdah.LimitKey(long),
		"limit_max":      howdah.LimitMax(1),
		"fair_key":       howdah.FairKey("line\n"),
		"tags":           howdah.Tags(strings.Split(strings.Repeat("x ", 17), " ")...),
		"tags[1]":        howdah.Tags("x", ""),
		"fallback":       howdah.Fallback("order.ship"),
		"next_stages[1]": howdah.NextStages("order.bill", "no spaces"),
	} {
		good, _ := howdah.NewJob("order.ship", nil)
		bad, _ := howdah.NewJob("order.ship", nil, set)
		for _, to := range []howdah.Enqueuer{client, recorder} {
			var refused *howdah.Error
			_, err := to.EnqueueAll(t.Context(), good, bad)
			if !errors.As(err, &refused) || refused.Field != "jobs[1]."+field || refused.Reason != "INVALID_FIELD" {
				t.Errorf("%T, %s: %v", to, field, err)
			}
		}
	}
	if jobs := recorder.Jobs(""); len(jobs) != 0 {
		t.Error(jobs)
	}
}

func TestABrokerHasAnHTTPPortAndRunsADelayedJobWhenItsClockAdvances(t *testing.T) {
	broker := howdahtest.StartBroker(t)
	answer, err := http.Get("http://" + broker.HTTPAddress + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	client, err := howdah.New(howdah.Config{Servers: []string{broker.Address}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	job, err := client.Enqueue(t.Context(), "order.ship", order{7}, howdah.Delay(72*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	earliest := time.Now().Add(72 * time.Hour)
	if now, err := broker.Advance(t.Context(), 72*time.Hour); err != nil || now.Before(earliest) {
		t.Error(now, err)
	}
	var refused *howdah.Error
	if _, err := broker.Advance(t.Context(), 0); !errors.As(err, &refused) || refused.Field != "duration" {
		t.Error(err)
	}
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle("order.ship", howdah.JSON(ship))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx) }()
	for done, err := range client.Wait(t.Context(), job.Id) {
		if err != nil || done.State != howdahv1.JobState_JOB_STATE_SUCCEEDED {
			t.Error(done, err)
		}
	}
	stop()
	if err := <-ended; err != nil || answer.StatusCode != http.StatusOK {
		t.Error(err, answer.Status)
	}
}

// failures counts assertion failures instead of failing the test.
type failures struct {
	testing.TB
	count int
}

func (f *failures) Errorf(string, ...any) { f.count++ }
