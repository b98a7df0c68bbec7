// Takes orders over HTTP and runs their jobs, until SIGTERM or Ctrl-C: go run .
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

func reserve(_ context.Context, job *howdah.Job, quantity int) (price int, err error) {
	if quantity >= 100 && job.Attempt == 1 { // Stands for a warehouse that does not always answer.
		return 0, errors.New("the warehouse does not answer") // The job is retried.
	}
	return quantity * 3, nil
}

func confirm(ctx context.Context, job *howdah.Job, email string) (string, error) {
	price, total := 0, 0
	for item, err := range job.Results(ctx) {
		if err := errors.Join(err, json.Unmarshal(item.GetResult(), &price)); err != nil {
			return "", err
		}
		total += price
	}
	return fmt.Sprintf("%s pays %d", email, total), nil
}

// jobsOf makes a job for each item of an order, and a job that runs after them and gets their results.
func jobsOf(email string, quantities []int) []*howdahv1.NewJob {
	last, jobs := must(howdah.NewJob("order.confirm", email)), []*howdahv1.NewJob{}
	for i, quantity := range quantities {
		item := must(howdah.NewJob("item.reserve", quantity, howdah.MaxAttempts(5), howdah.Backoff(time.Second, time.Minute)))
		item.LocalName = fmt.Sprint("item ", i)
		last.AfterLocal = append(last.AfterLocal, item.LocalName)
		jobs = append(jobs, item)
	}
	return append(jobs, last)
}

func main() {
	ctx, client := context.Background(), must(howdah.New(howdah.Config{})) // Uses HOWDAH_SERVER, or else this machine.
	// Every start applies the schedule, which replaces the one of an earlier start.
	job := must(howdah.NewJob("item.reserve", 10))
	must(client.ApplySchedule(ctx, "shelf.nightly", job, howdah.Cron("0 3 * * *", "Europe/Berlin")))
	http.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var order struct {
			Email      string
			Quantities []int
		}
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		} else if jobs, err := client.EnqueueAll(r.Context(), jobsOf(order.Email, order.Quantities)...); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		} else { // All jobs of the order are committed.
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintln(w, jobs[len(jobs)-1].Id)
		}
	})
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "8080"), nil)) }()
	worker := client.NewWorker(howdah.WorkerConfig{Concurrency: 8}) // At most 8 jobs at once, of all task types together.
	worker.Handle("item.reserve", howdah.JSON(reserve))
	worker.Handle("order.confirm", howdah.JSON(confirm))
	must(worker, worker.RunUntilSignal(ctx)) // Ends after a signal, when the running jobs have ended.
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
