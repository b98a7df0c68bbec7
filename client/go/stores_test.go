package howdah_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
	"howdah.dev/go/howdahv1"
)

// perStore is the size of a store's range of job ids. The ids of store1 begin at 0, the ids of store2 at perStore.
const perStore = 100_000_000_000_000

func inStore(t *testing.T, client *howdah.Client, name string) *howdah.Client {
	t.Helper()
	of, err := client.InStore(name)
	must(t, err)
	return of
}

func listed(t *testing.T, client *howdah.Client) (ids []int64) {
	t.Helper()
	request := &howdahv1.ListJobsRequest{TaskType: typeName(t), PageSize: 10}
	list, err := howdahv1.NewJobServiceClient(client).ListJobs(t.Context(), request)
	must(t, err)
	for _, job := range list.Jobs {
		ids = append(ids, job.Id)
	}
	slices.Sort(ids)
	return ids
}

func TestJobsGoToTheStoreThatTheClientNames(t *testing.T) {
	t.Parallel()
	two := howdahtest.StartBroker(t, "--stores", "2")
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{two.Address} })
	here, there := inStore(t, client, "store1"), inStore(t, client, "store2")
	first, err := here.Enqueue(t.Context(), typeName(t), nil)
	must(t, err)
	second, err := there.Enqueue(t.Context(), typeName(t), nil)
	must(t, err)
	producer := there.NewProducer(howdah.ProducerConfig{})
	third, err := producer.Enqueue(t.Context(), typeName(t), nil)
	must(t, errors.Join(err, producer.Close()))
	ids := []int64{first.Id, second.Id, third.Id}
	if stores := []int64{ids[0] / perStore, ids[1] / perStore, ids[2] / perStore}; !slices.Equal(stores, []int64{0, 1, 1}) {
		t.Error(ids)
	}
	// A client of one store lists the jobs of that store. The original client lists the jobs of all stores.
	if got := listed(t, here); !slices.Equal(got, ids[:1]) {
		t.Error(got)
	}
	if got := listed(t, there); !slices.Equal(got, ids[1:]) {
		t.Error(got)
	}
	if got := listed(t, client); !slices.Equal(got, ids) {
		t.Error(got)
	}
	// A worker gets jobs of all stores, because its client has no store.
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), func(context.Context, *howdah.Job) ([]byte, error) { return nil, nil }, 4)
	run(t, worker)
	for _, err := range client.Wait(within(t, 20*time.Second), ids...) {
		must(t, err)
	}

	_, err = inStore(t, client, "post").Enqueue(t.Context(), typeName(t), nil)
	var refused *howdah.Error
	if !errors.As(err, &refused) || refused.Code != codes.InvalidArgument || refused.Field != "howdah-store" ||
		refused.Message != `howdah-store is "post"; this broker serves store1, store2` {
		t.Errorf("%#v", err)
	}
}

// slowStore is a fake broker whose responses report two stores that did not answer.
type slowStore struct {
	howdahv1.UnimplementedJobServiceServer
}

func (slowStore) ListJobs(ctx context.Context, _ *howdahv1.ListJobsRequest) (*howdahv1.ListJobsResponse, error) {
	left := metadata.Pairs("howdah-unanswered-stores", "mail,news")
	return &howdahv1.ListJobsResponse{}, grpc.SetHeader(ctx, left)
}

func TestStoresThatAnAnswerLeavesOutAreLogged(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer()
	howdahv1.RegisterJobServiceServer(server, slowStore{})
	var served sync.WaitGroup
	served.Go(func() { server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		served.Wait()
	})
	var output bytes.Buffer
	client := connect(t, func(cfg *howdah.Config) {
		cfg.Servers = []string{listener.Addr().String()}
		cfg.Logger = slog.New(slog.NewTextHandler(&output, nil))
	})
	listed(t, client)
	for _, part := range []string{"level=WARN", "these stores did not answer", "stores=mail,news"} {
		if !strings.Contains(output.String(), part) {
			t.Errorf("%q is not in %q", part, output.String())
		}
	}
}

func TestATypeIsCountedAndPausedInEachStoreThatHasIt(t *testing.T) {
	t.Parallel()
	two := howdahtest.StartBroker(t, "--stores", "2")
	client := connect(t, func(cfg *howdah.Config) { cfg.Servers = []string{two.Address} })
	stores := []*howdah.Client{inStore(t, client, "store1"), inStore(t, client, "store2")}
	for i, store := range stores {
		_, err := store.Enqueue(t.Context(), typeName(t), nil)
		must(t, err)
		must(t, store.ApplyTaskType(t.Context(), typeName(t), &howdahv1.TaskTypeSettings{MaxAttempts: uint32(i + 3)}))
	}
	must(t, client.PauseTaskType(t.Context(), typeName(t)))
	for i, store := range stores {
		found, err := store.GetTaskType(t.Context(), typeName(t))
		must(t, err)
		if settings := found.Settings; !settings.Paused || settings.MaxAttempts != uint32(i+3) {
			t.Errorf("store %d: %v", i, settings)
		}
	}
	all, err := client.GetTaskType(t.Context(), typeName(t))
	must(t, err)
	if all.Counts.Ready != 2 {
		t.Errorf("%v", all.Counts)
	}
}

func TestWhatCannotBeTheNameOfAStoreIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"m\u00e4il", "a\nb"} {
		_, err := connect(t).InStore(name)
		var refused *howdah.Error
		if !errors.As(err, &refused) || refused.Code != codes.InvalidArgument || refused.Field != "store" {
			t.Errorf("%q: %v", name, err)
		}
	}
}
