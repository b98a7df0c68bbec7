package howdah_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
	"howdah.dev/go/howdahv1"
)

// sizes is a handler that returns the sizes of the results of the job's dependencies.
func sizes(ctx context.Context, job *howdah.Job, _ any) ([]int, error) {
	found := []int{}
	for result, err := range job.Results(ctx) {
		if err != nil {
			return nil, err
		}
		if result.State != howdahv1.JobState_JOB_STATE_SUCCEEDED {
			return nil, howdah.Fatal(fmt.Errorf("dependency %d is %v", result.Id, result.State))
		}
		found = append(found, len(result.Result))
	}
	return found, nil
}

func TestAJobGetsTheResultsOfItsDependenciesInOrder(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]int{
		"together": {3, 0, 5},
		// 70,000 bytes do not come with the job. The large results do not fit into one page.
		"fetched": {3, 70_000, 5, 900_000, 900_000, 900_000, 900_000, 1},
		"none":    {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := connect(t)
			part, join := typeName(t)+".part", typeName(t)+".join"
			worker := client.NewWorker(howdah.WorkerConfig{})
			worker.Handle(part, func(_ context.Context, job *howdah.Job) ([]byte, error) {
				var size int
				err := json.Unmarshal(job.Payload, &size)
				return make([]byte, size), err
			})
			worker.Handle(join, howdah.JSON(sizes))
			run(t, worker)
			last, err := howdah.NewJob(join, nil)
			must(t, err)
			var jobs []*howdahv1.NewJob
			for n, size := range want {
				job, err := howdah.NewJob(part, size)
				must(t, err)
				job.LocalName = fmt.Sprintf("part %d", n)
				last.AfterLocal = append(last.AfterLocal, job.LocalName)
				jobs = append(jobs, job)
			}
			enqueued, err := client.EnqueueAll(t.Context(), append(jobs, last)...)
			must(t, err)
			var got []int
			must(t, json.Unmarshal(ended(t, client, enqueued[len(want)].Id).Result, &got))
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestAHandlerGetsTheResultsThatATestGives(t *testing.T) {
	succeeded := howdahv1.JobState_JOB_STATE_SUCCEEDED
	done := howdahtest.Perform(t, howdah.JSON(sizes), nil, func(job *howdahv1.LeasedJob) {
		job.After = []*howdahv1.DependencyResult{{State: succeeded, Result: []byte("abc")}, {State: succeeded}}
	})
	if string(done.Result) != "[3,0]" || done.Err != nil {
		t.Errorf("%s, %v", done.Result, done.Err)
	}
}
