// Command bench is a worker for `howdah bench client --client CMD`. Its handler does nothing, so that the benchmark
// measures the client.
package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"strconv"

	howdah "howdah.dev/go"
)

func main() {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	concurrency, err := strconv.Atoi(os.Getenv("HOWDAH_BENCH_CONCURRENCY"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := howdah.New(howdah.Config{})
	if err != nil {
		log.Fatal(err)
	}
	worker := client.NewWorker(howdah.WorkerConfig{Concurrency: concurrency})
	worker.Handle(os.Getenv("HOWDAH_BENCH_TYPE"), func(context.Context, *howdah.Job) ([]byte, error) { return nil, nil })
	if err := worker.RunUntilSignal(context.Background()); err != nil {
		log.Fatal(err)
	}
}
