package howdah_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// invalid returns the error as one with the code INVALID_ARGUMENT and this field, or fails the test.
func invalid(t *testing.T, err error, field string) *howdah.Error {
	t.Helper()
	var refused *howdah.Error
	if !errors.As(err, &refused) || refused.Code != codes.InvalidArgument || refused.Field != field || refused.IsRetryable() {
		t.Fatalf("the error is not about %q: %v", field, err)
	}
	return refused
}

func TestATextThatIsNotUTF8IsRefusedWithoutACall(t *testing.T) {
	t.Parallel()
	// No broker answers at this address.
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{"127.0.0.1:1"} })
	ctx := within(t, 10*time.Second)
	for field, option := range map[string]howdah.Option{
		"jobs[0].key": howdah.Key("caf\xe9"), "jobs[0].headers": howdah.Header("a", "\xff"), "jobs[0].tags[1]": howdah.Tags("a", "\xff"),
	} {
		_, err := client.Enqueue(ctx, "a", nil, option)
		if text := invalid(t, err, field).Error(); !strings.Contains(text, "UTF-8") || !strings.Contains(text, `\x`) {
			t.Error(text)
		}
	}
	_, err := client.Enqueue(ctx, "a", nil, howdah.Header("\xff", "a"))
	invalid(t, err, "jobs[0].headers")
	job, err := howdah.NewJob("a", nil, howdah.FairKey("\xff"))
	must(t, err)
	_, err = client.EnqueueWithKey(ctx, "\xff", &howdahv1.NewJob{TaskType: "a"})
	invalid(t, err, "request_key")
	_, err = client.ApplySchedule(ctx, "a", job, howdah.Every(time.Hour))
	invalid(t, err, "schedule.template.fair_key")
	_, err = client.CancelJobsWhere(ctx, "a", howdah.HasTag("\xff"))
	invalid(t, err, "filter.conditions.tag")
	invalid(t, client.PauseTaskType(ctx, "\xff"), "task_type")
}

func TestAStreamRefusesATextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	stream, err := howdahv1.NewJobServiceClient(connect(t)).StreamEnqueue(within(t, 10*time.Second))
	must(t, err)
	invalid(t, stream.Send(&howdahv1.StreamEnqueueRequest{RequestKey: "\xff"}), "request_key")
}

func TestAMessageThatCannotBeEncodedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	method := howdahv1.JobService_EnqueueJobs_FullMethodName
	err := connect(t).Invoke(within(t, 10*time.Second), method, "not a message", &howdahv1.EnqueueJobsResponse{})
	invalid(t, err, "")
}

func TestAProducerRefusesATextThatIsNotUTF8AndStoresTheOtherJobs(t *testing.T) {
	t.Parallel()
	producer := connect(t).NewProducer(howdah.ProducerConfig{})
	defer producer.Close()
	ctx := within(t, 10*time.Second)
	good, err := producer.Submit(ctx, &howdahv1.NewJob{TaskType: typeName(t)})
	must(t, err)
	_, err = producer.Submit(ctx, &howdahv1.NewJob{TaskType: typeName(t)}, &howdahv1.NewJob{TaskType: typeName(t), Key: "caf\xe9"})
	invalid(t, err, "jobs[1].key")
	_, err = producer.Enqueue(ctx, typeName(t), nil)
	must(t, err)
	_, err = good.Wait(ctx)
	must(t, err)
}

func TestAJobThatIsChangedAfterItsSubmissionAndCannotBeEncodedFailsAlone(t *testing.T) {
	t.Parallel()
	way := newProxy(t)
	way.set(true)
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{way.address()} })
	producer := client.NewProducer(howdah.ProducerConfig{})
	defer producer.Close()
	ctx := within(t, 20*time.Second)
	job := &howdahv1.NewJob{TaskType: typeName(t)}
	changed, err := producer.Submit(ctx, job)
	must(t, err)
	job.Key = "\xff"
	good, err := producer.Submit(ctx, &howdahv1.NewJob{TaskType: typeName(t)})
	must(t, err)
	way.set(false)
	_, err = changed.Wait(ctx)
	invalid(t, err, "jobs[0].key")
	_, err = good.Wait(ctx)
	must(t, err)
}

func TestTextsOfAWorkerThatAreNotUTF8AreRefusedOrRepaired(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t), within(t, 20*time.Second)
	labelled := client.NewWorker(howdah.WorkerConfig{Labels: map[string]string{"host": "\xff"}})
	labelled.Handle(typeName(t), howdah.JSON(func(context.Context, *howdah.Job, any) (any, error) { return nil, nil }))
	invalid(t, labelled.Run(ctx), "labels")
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), howdah.JSON(func(ctx context.Context, job *howdah.Job, how string) (any, error) {
		switch how {
		case "progress":
			return nil, howdah.Fatal(job.Progress(ctx, 0.5, "\xff"))
		case "stage":
			return nil, howdah.NextStage("\xff")
		}
		return nil, howdah.Fatal(errors.New("caf\xe9"))
	}))
	run(t, worker)
	for how, text := range map[string]string{"progress": "reports[0].text is not valid UTF-8", "error": "caf\uFFFD"} {
		if job := ended(t, client, enqueue(t, client, how)); !strings.Contains(job.Failures[0].Error, text) {
			t.Error(job)
		}
	}
	staged := ended(t, client, enqueue(t, client, "stage"))
	if !strings.Contains(staged.Failures[0].Error, "next_stage is not valid UTF-8") {
		t.Error(staged)
	}
}

func TestOptionsThatExcludeEachOtherAreRefusedByName(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t), t.Context()
	for names, options := range map[string][]howdah.Option{
		"delay run_at":           {howdah.Delay(time.Hour), howdah.RunAt(time.Now())},
		"run_at delay":           {howdah.RunAt(time.Now()), howdah.Priority(1), howdah.Delay(time.Hour)},
		"expire_at expire_after": {howdah.ExpireAt(time.Now()), howdah.ExpireAfter(time.Hour)},
	} {
		first, second, _ := strings.Cut(names, " ")
		_, err := client.Enqueue(ctx, typeName(t), nil, options...)
		if text := invalid(t, err, second).Error(); !strings.Contains(text, first+" and "+second) {
			t.Error(text)
		}
	}
	twice, err := howdah.NewJob(typeName(t), nil, howdah.Delay(time.Hour), howdah.Delay(time.Minute), howdah.KeyVersion(1))
	must(t, err)
	if twice.GetDelay().AsDuration() != time.Minute {
		t.Error(twice)
	}
	_, err = client.ApplySchedule(ctx, typeName(t), twice, howdah.Cron("30 2 * * *", "UTC"), howdah.Every(time.Hour))
	if text := invalid(t, err, "period").Error(); !strings.Contains(text, "cron and period") {
		t.Error(text)
	}
	_, err = howdah.New(howdah.Config{Token: "hwd_x", TokenFile: "token"})
	invalid(t, err, "Token")
}

func TestNegativeNumbersOfAConfigurationAreRefused(t *testing.T) {
	t.Parallel()
	client := connect(t)
	_, err := howdah.New(howdah.Config{RequestTimeout: -time.Second})
	invalid(t, err, "RequestTimeout")
	producer := client.NewProducer(howdah.ProducerConfig{MaxInFlight: -1})
	defer producer.Close()
	_, err = producer.Enqueue(within(t, 10*time.Second), typeName(t), nil)
	invalid(t, err, "MaxInFlight")
	worker := client.NewWorker(howdah.WorkerConfig{Concurrency: -1})
	worker.Handle(typeName(t), howdah.JSON(func(context.Context, *howdah.Job, any) (any, error) { return nil, nil }))
	if text := invalid(t, worker.Run(within(t, 10*time.Second)), "Concurrency").Error(); !strings.Contains(text, "-1") {
		t.Error(text)
	}
}

func TestHandlersOfAWorkerThatAreInvalidAreAnErrorOfRun(t *testing.T) {
	t.Parallel()
	handler := howdah.JSON(func(context.Context, *howdah.Job, any) (any, error) { return nil, nil })
	for field, handle := range map[string]func(*howdah.Worker){
		"handler":     func(w *howdah.Worker) { w.Handle(typeName(t), nil) },
		"taskType":    func(w *howdah.Worker) { w.Handle(typeName(t), handler); w.Handle(typeName(t), handler, 2) },
		"concurrency": func(w *howdah.Worker) { w.Handle(typeName(t), handler, -1) },
	} {
		worker := connect(t).NewWorker(howdah.WorkerConfig{})
		handle(worker)
		text := invalid(t, worker.Run(within(t, 10*time.Second)), field).Error()
		if !strings.Contains(text, fmt.Sprintf("%q", typeName(t))) {
			t.Error(text)
		}
	}
}
