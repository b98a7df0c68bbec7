package otelhowdah_test

import (
	"context"
	"log"

	howdah "howdah.dev/go"
	"howdah.dev/go/otelhowdah"
)

func Example() {
	telemetry := otelhowdah.New(nil) // nil: the global providers
	client, err := howdah.New(howdah.Config{
		EnqueueMiddleware: []func(howdah.EnqueueFunc) howdah.EnqueueFunc{telemetry.Enqueue},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	worker := client.NewWorker(howdah.WorkerConfig{
		Middleware: []func(howdah.Handler) howdah.Handler{telemetry.Handle},
	})
	worker.Handle("email.send", func(context.Context, *howdah.Job) ([]byte, error) { return nil, nil })
	log.Println(worker.RunUntilSignal(context.Background()))
}
