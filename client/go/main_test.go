package howdah_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
	"howdah.dev/go/howdahv1"
)

var broker *howdahtest.Broker

func TestMain(m *testing.M) {
	started, stop, err := howdahtest.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "no broker:", err)
		os.Exit(1)
	}
	broker = started
	os.Setenv("HOWDAH_SERVER", broker.Address)
	status := m.Run()
	stop()
	if err := goleak.Find(); status == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// connect makes a client that is closed at the end of the test.
func connect(t testing.TB, change ...func(*howdah.Config)) *howdah.Client {
	t.Helper()
	cfg := howdah.Config{Servers: []string{broker.Address}, Logger: logger(t)}
	for _, f := range change {
		f(&cfg)
	}
	client, err := howdah.New(cfg)
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

var (
	typeNames sync.Map
	typeCount atomic.Int32
)

// typeName returns a task type that is unique to this run of the test.
func typeName(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, t.Name())
	unique, _ := typeNames.LoadOrStore(t, fmt.Sprintf("%s.%d", name, typeCount.Add(1)))
	return unique.(string)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// run starts a worker. It stops when the returned function is called, or when the test ends.
func run(t testing.TB, worker *howdah.Worker) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	var err error
	done := false
	stop = func() error {
		cancel()
		if !done {
			err, done = <-ended, true
		}
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// ended waits until the job has ended, and returns it.
func ended(t testing.TB, client *howdah.Client, id int64) *howdahv1.Job {
	t.Helper()
	for job, err := range client.Wait(within(t, 20*time.Second), id) {
		must(t, err)
		return job
	}
	t.Fatal("no answer")
	return nil
}
