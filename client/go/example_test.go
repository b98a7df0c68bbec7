package howdah_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// Runs one job in a worker and prints the job's result.
func Example() {
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	worker := client.NewWorker(howdah.WorkerConfig{Concurrency: 16})
	worker.Handle("example.greet", howdah.JSON(func(_ context.Context, _ *howdah.Job, name string) (string, error) {
		return "hello, " + name, nil
	}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx) }()

	job, err := client.Enqueue(ctx, "example.greet", "mahout")
	if err != nil {
		log.Fatal(err)
	}
	for done, err := range client.Wait(ctx, job.Id) {
		fmt.Println(string(done.GetResult()), err)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// "hello, mahout" <nil>
	// <nil>
}

func ExampleClient_Enqueue() {
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	job, err := client.Enqueue(context.Background(), "example.email", map[string]string{"to": "ann@example.com"},
		howdah.Key("welcome-ann"), howdah.Delay(time.Hour), howdah.Priority(-5), howdah.MaxAttempts(3),
		howdah.RetryDelays(time.Second, time.Minute))
	fmt.Println(job.GetId() > 0, err)
	// Output: true <nil>
}

func ExampleError() {
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	_, err = client.Enqueue(context.Background(), "no spaces", nil)
	var refused *howdah.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Code, refused.Reason, refused.Field)
	}
	// Output: InvalidArgument INVALID_FIELD jobs[0].task_type
}

func ExampleClient_NewProducer() {
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	producer := client.NewProducer(howdah.ProducerConfig{})
	defer producer.Close()
	for i := range 1000 {
		job := &howdahv1.NewJob{TaskType: "example.row", Priority: int32(i)}
		if _, err := producer.Submit(context.Background(), job); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(producer.Flush(context.Background()))
	// Output: <nil>
}

// The error that a handler returns decides what happens to the job.
func ExampleHandler() {
	fetch := func(ctx context.Context, job *howdah.Job) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, string(job.Payload), nil)
		if err != nil {
			return nil, howdah.Fatal(err) // A retry would fail again.
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err // Retried by the job's retry policy.
		}
		defer response.Body.Close()
		switch response.StatusCode {
		case http.StatusTooManyRequests:
			return nil, howdah.RetryAfter(time.Minute, errors.New(response.Status))
		case http.StatusServiceUnavailable:
			return nil, howdah.Snooze(time.Minute) // Runs again later; the attempt does not count.
		}
		return []byte(response.Status), nil
	}
	fmt.Printf("%T\n", howdah.Handler(fetch))
	// Output: howdah.Handler
}

// A program applies its schedules and settings at each start.
func ExampleClient_ApplySchedule() {
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	job, err := howdah.NewJob("example.report", map[string]int{"days": 1}, howdah.MaxAttempts(3))
	if err != nil {
		log.Fatal(err)
	}
	schedule, err := client.ApplySchedule(ctx, "example.nightly", job,
		howdah.Cron("30 2 * * *", "Europe/Berlin"), howdah.Jitter(time.Minute))
	fmt.Println(len(schedule.GetNextTimes()), err)
	err = client.ApplyTaskType(ctx, "example.report", &howdahv1.TaskTypeSettings{
		MaxRunning: 2, Timeout: durationpb.New(time.Hour),
	})
	fmt.Println(err)
	// Output:
	// 10 <nil>
	// <nil>
}

// The generated stubs make every call of the protocol through the client.
func ExampleClient_Invoke() {
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := howdah.Reason(context.Background(), "ticket 42")
	answer, err := howdahv1.NewJobServiceClient(client).CancelJobs(ctx, &howdahv1.CancelJobsRequest{Ids: []int64{1 << 60}})
	fmt.Println(len(answer.GetCancelledIds()), err)
	// Output: 0 <nil>
}
