package howdahtest_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
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

func TestARecorderAnswersAHeldKeyAsABrokerDoes(t *testing.T) {
	broker := howdahtest.StartBroker(t)
	client, err := howdah.New(howdah.Config{Servers: []string{broker.Address}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	recorder := &howdahtest.Recorder{}
	replace, newer := howdahv1.KeyPolicy_KEY_POLICY_REPLACE, howdahv1.KeyPolicy_KEY_POLICY_REPLACE_IF_NEWER
	debounce, reject := howdahv1.KeyPolicy_KEY_POLICY_DEBOUNCE, howdahv1.KeyPolicy_KEY_POLICY_REJECT
	for i, options := range [][]howdah.Option{
		{howdah.Key("a")}, {howdah.Key("a")}, {howdah.Key("b")}, {howdah.Key("a", replace)}, {},
		{howdah.Key("a", newer), howdah.KeyVersion(5)}, {howdah.Key("a", newer), howdah.KeyVersion(5)},
		{howdah.Key("a", newer), howdah.KeyVersion(6)}, {howdah.Key("b", debounce), howdah.Delay(time.Hour)},
		{howdah.Key("c", reject)}, {howdah.Key("c", reject)}, {howdah.Key("a"), howdah.Priority(7)},
	} {
		expected, wanted := client.Enqueue(t.Context(), "a", i, options...)
		got, err := recorder.Enqueue(t.Context(), "a", i, options...)
		if got.GetOutcome() != expected.GetOutcome() || got.GetIsNew() != expected.GetIsNew() {
			t.Errorf("%d: %v instead of %v", i, got, expected)
		}
		var held, answer *howdah.Error
		if errors.As(wanted, &held) && (!errors.As(err, &answer) || answer.Reason != held.Reason) {
			t.Errorf("%d: %v instead of %v", i, err, wanted)
		}
	}
	var payloads []string
	for _, job := range recorder.Jobs("a") {
		payloads = append(payloads, string(job.Payload))
	}
	if !slices.Equal(payloads, []string{"7", "8", "4", "9"}) {
		t.Error(payloads)
	}
	if same, err := recorder.Enqueue(t.Context(), "a", nil, howdah.Key("b")); err != nil || same.Id != 2 {
		t.Error(same, err)
	}
	other, err := recorder.Enqueue(t.Context(), "b", nil, howdah.Key("a"))
	if err != nil || !other.IsNew {
		t.Error(other, err)
	}
	twice, _ := howdah.NewJob("c", nil, howdah.Key("x", reject))
	for _, to := range []howdah.Enqueuer{client, recorder} {
		if _, err := to.EnqueueAll(t.Context(), twice, twice); !errors.Is(err, howdah.ErrAlreadyExists) {
			t.Errorf("%T: %v", to, err)
		}
	}
	if jobs := recorder.Jobs("c"); len(jobs) != 0 {
		t.Error(jobs)
	}
}

func TestARecorderRefusesATextThatIsNotUTF8(t *testing.T) {
	var refused *howdah.Error
	_, err := (&howdahtest.Recorder{}).Enqueue(t.Context(), "a", nil, howdah.Header("a", "\xff"))
	if !errors.As(err, &refused) || refused.Field != "jobs[0].headers" {
		t.Error(err)
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
