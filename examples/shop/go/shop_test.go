package main

import (
	"context"
	"testing"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
)

func TestAHandlerRunsWithoutABroker(t *testing.T) {
	if done := howdahtest.Perform(t, howdah.JSON(reserve), 2); string(done.Result) != "6" {
		t.Error(done)
	}
	if done := howdahtest.Perform(t, howdah.JSON(reserve), 100); done.Err == nil {
		t.Error(done)
	}
}

// Needs the program howdah, on the PATH or as HOWDAH_BIN.
func TestAnOrderRuns(t *testing.T) {
	client := must(howdah.New(howdah.Config{Servers: []string{howdahtest.StartBroker(t).Address}}))
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle("item.reserve", howdah.JSON(reserve))
	worker.Handle("order.confirm", howdah.JSON(confirm))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- worker.Run(ctx) }()
	jobs := must(client.EnqueueAll(ctx, jobsOf("ann@example.com", []int{2, 1})...))
	for last, err := range client.Wait(ctx, jobs[2].Id) {
		if string(last.GetResult()) != `"ann@example.com pays 9"` || err != nil {
			t.Error(last, err)
		}
	}
	if stop(); <-ended != nil || client.Close() != nil {
		t.Error("did not stop")
	}
}
