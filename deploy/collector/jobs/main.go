// A producer and its worker, which export spans to a collector: the only job fails once, then succeeds. Prints the traceparent.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/trace"
	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
	"howdah.dev/go/otelhowdah"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	// The collector's address and CA are in OTEL_EXPORTER_OTLP_ENDPOINT and _CERTIFICATE, the broker's in HOWDAH_SERVER.
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return err
	}
	provider := trace.NewTracerProvider(trace.WithBatcher(exporter))
	telemetry := otelhowdah.New(provider)
	client, err := howdah.New(howdah.Config{
		EnqueueMiddleware: []func(howdah.EnqueueFunc) howdah.EnqueueFunc{telemetry.Enqueue},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	worker := client.NewWorker(howdah.WorkerConfig{
		Middleware: []func(howdah.Handler) howdah.Handler{telemetry.Handle},
	})
	worker.Handle("order", func(_ context.Context, job *howdah.Job) ([]byte, error) {
		if job.Attempt == 1 {
			return nil, errors.New("out of stock")
		}
		return []byte(job.Traceparent), nil
	})
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(working) }()

	order, err := client.Enqueue(ctx, "order", "an elephant")
	if err != nil {
		return err
	}
	for done, err := range client.Wait(ctx, order.Id) {
		if err != nil {
			return err
		}
		if done.State != howdahv1.JobState_JOB_STATE_SUCCEEDED {
			return fmt.Errorf("the order is %v", done.State)
		}
		fmt.Println(string(done.Result))
	}
	stop()
	return errors.Join(<-ended, provider.Shutdown(ctx))
}
