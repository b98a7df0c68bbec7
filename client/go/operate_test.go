package howdah_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// idsOf returns the ids of the jobs, sorted.
func idsOf(t *testing.T, jobs iter.Seq2[*howdahv1.Job, error]) (ids []int64) {
	t.Helper()
	for job, err := range jobs {
		must(t, err)
		ids = append(ids, job.Id)
	}
	slices.Sort(ids)
	return ids
}

func enqueue(t *testing.T, client *howdah.Client, payload any, options ...howdah.Option) int64 {
	t.Helper()
	job, err := client.Enqueue(t.Context(), typeName(t), payload, options...)
	must(t, err)
	return job.Id
}

func TestJobsAreListedAndFoundByKeyTagHeaderAndPayload(t *testing.T) {
	t.Parallel()
	client, since := connect(t), time.Now().Add(-time.Hour)
	one := enqueue(t, client, []byte(`{"order":17}`), howdah.Key("k"), howdah.Tags("batch"))
	two := enqueue(t, client, []byte(`{"order":18}`), howdah.Header("customer", "ann"), howdah.Tags("batch"))
	three := enqueue(t, client, nil, howdah.Delay(time.Hour))
	ready, scheduled := howdahv1.JobState_JOB_STATE_READY, howdahv1.JobState_JOB_STATE_SCHEDULED
	if ids := idsOf(t, client.ListJobs(t.Context(), typeName(t), scheduled)); !slices.Equal(ids, []int64{three}) {
		t.Error(ids)
	}
	if ids := idsOf(t, client.ListJobs(t.Context(), typeName(t), 0)); !slices.Equal(ids, []int64{one, two, three}) {
		t.Error(ids)
	}
	for _, c := range []struct {
		search howdah.Search
		want   []int64
	}{
		{howdah.Search{Key: "k"}, []int64{one}},
		{howdah.Search{Tag: "batch"}, []int64{one, two}},
		{howdah.Search{Tag: "batch", State: scheduled}, nil},
		{howdah.Search{HeaderName: "customer", HeaderValue: "ann", State: ready, Since: since}, []int64{two}},
		{howdah.Search{PayloadText: "17", State: ready, Since: since}, []int64{one}},
		{howdah.Search{PayloadPath: "$.order == 18", State: ready, Since: since}, []int64{two}},
	} {
		c.search.TaskType = typeName(t)
		if ids := idsOf(t, client.SearchJobs(t.Context(), c.search)); !slices.Equal(ids, c.want) {
			t.Errorf("%+v finds %v", c.search, ids)
		}
	}
	for _, err := range client.SearchJobs(t.Context(), howdah.Search{TaskType: typeName(t), Key: "a", Tag: "b"}) {
		var refused *howdah.Error
		if !errors.As(err, &refused) || refused.Field != "query" {
			t.Error(err)
		}
	}
	for text, search := range map[string]howdah.Search{
		"Key and PayloadText":     {TaskType: typeName(t), Key: "a", PayloadText: "b"},
		"State and Since":         {TaskType: typeName(t), State: ready},
		"HeaderValue needs Heade": {TaskType: typeName(t), Tag: "a", HeaderValue: "b"},
	} {
		for _, err := range client.SearchJobs(t.Context(), search) {
			if refused := invalid(t, err, "query"); !strings.Contains(refused.Message, text) {
				t.Error(refused)
			}
		}
	}
}

func TestJobsThatMeetConditionsAreCancelledRetriedAndDiscarded(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t), t.Context()
	one, two := enqueue(t, client, nil, howdah.Tags("a"), howdah.FairKey("f")), enqueue(t, client, nil, howdah.Tags("a", "b"))
	three := enqueue(t, client, nil, howdah.LimitKey("l"), howdah.Delay(time.Hour))
	stop := run(t, failing(t, client))
	ended(t, client, one)
	ended(t, client, two)
	must(t, stop())
	tag, since := howdah.HasTag("a"), howdah.CreatedSince(time.Now().Add(-time.Hour))
	dead := howdah.InState(howdahv1.JobState_JOB_STATE_DEAD)
	where := func(
		call func(context.Context, string, ...howdah.Condition) ([]int64, error), want []int64, conditions ...howdah.Condition,
	) {
		t.Helper()
		ids, err := call(ctx, typeName(t), conditions...)
		must(t, err)
		if slices.Sort(ids); !slices.Equal(ids, want) {
			t.Errorf("%v instead of %v", ids, want)
		}
	}
	where(client.RetryJobsWhere, nil, tag, since, howdah.HasFairKey("x"))
	where(client.RetryJobsWhere, nil, tag, howdah.AttemptsAtLeast(2))
	where(client.DiscardJobsWhere, []int64{two}, dead, howdah.HasTag("b"), howdah.AttemptsAtMost(1))
	where(client.RetryJobsWhere, []int64{one}, tag, dead, since, howdah.InErrorGroup("broken"))
	where(client.CancelJobsWhere, []int64{three}, howdah.HasLimitKey("l"), howdah.CreatedBefore(time.Now().Add(time.Hour)))
	where(client.CancelJobsWhere, []int64{one})
	where(client.CancelJobsWhere, nil, howdah.HeldBy("0123456789abcdef"))
}

func TestAConditionThatIsEmptyOrGivenTwiceSelectsNoJobs(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t), t.Context()
	id := enqueue(t, client, nil, howdah.Tags("a"))
	for field, conditions := range map[string][]howdah.Condition{
		"tag": {howdah.HasTag("")}, "fair_key": {howdah.HasTag("a"), howdah.HasFairKey("")}, "limit_key": {howdah.HasLimitKey("")},
		"worker_id": {howdah.HeldBy("")}, "created_since": {howdah.CreatedSince(time.Time{})},
		"created_before": {howdah.CreatedBefore(time.Time{})}, "state": {howdah.InState(0)},
		"error_group": {howdah.InErrorGroup("")}, "attempts_at_least": {howdah.AttemptsAtLeast(0), howdah.AttemptsAtLeast(0)},
	} {
		for _, call := range []func(context.Context, string, ...howdah.Condition) ([]int64, error){
			client.CancelJobsWhere, client.RetryJobsWhere, client.DiscardJobsWhere,
		} {
			_, err := call(ctx, typeName(t), conditions...)
			invalid(t, err, field)
		}
	}
	_, err := client.CancelJobsWhere(ctx, "")
	invalid(t, err, "filter")
	if job := state(t, id); job.State != howdahv1.JobState_JOB_STATE_READY {
		t.Error(job)
	}
}

func TestACallWithConditionsHandlesMoreJobsThanOneCallOfTheProtocol(t *testing.T) {
	t.Parallel()
	client := connect(t)
	jobs := slices.Repeat([]*howdahv1.NewJob{{TaskType: typeName(t)}}, 10_000)
	for range 2 {
		_, err := client.EnqueueAll(t.Context(), jobs...)
		must(t, err)
	}
	ids, err := client.CancelJobsWhere(within(t, time.Minute), typeName(t))
	must(t, err)
	if slices.Sort(ids); len(slices.Compact(ids)) != 20_000 {
		t.Error(len(ids))
	}
}

func TestJobsAreExplainedCancelledRetriedAndDiscarded(t *testing.T) {
	t.Parallel()
	client := connect(t)
	later, dead := enqueue(t, client, nil, howdah.Delay(time.Hour)), enqueue(t, client, nil)
	explained, err := client.ExplainJob(t.Context(), later)
	must(t, err)
	if explained.Reasons[0].Kind != howdahv1.ReasonKind_REASON_KIND_DELAYED {
		t.Error(explained)
	}
	stop := run(t, failing(t, client))
	ended(t, client, dead)
	must(t, stop())
	if none, err := client.CancelJobs(t.Context()); len(none) > 0 || err != nil {
		t.Error(none, err)
	}
	cancelled, err := client.CancelJobs(t.Context(), later, dead+1<<40)
	must(t, err)
	retried, err := client.RetryJobs(t.Context(), dead)
	must(t, err)
	job, err := client.GetJob(t.Context(), dead)
	must(t, err)
	if !slices.Equal(cancelled, []int64{later}) || !slices.Equal(retried, []int64{dead}) || job.State == howdahv1.JobState_JOB_STATE_DEAD {
		t.Error(cancelled, retried, job)
	}
	run(t, failing(t, client))
	ended(t, client, dead)
	discarded, err := client.DiscardJobs(t.Context(), dead, later)
	must(t, err)
	if !slices.Equal(discarded, []int64{dead}) {
		t.Error(discarded)
	}
	if _, err := client.GetJob(t.Context(), 1<<60); !errors.Is(err, howdah.ErrNotFound) {
		t.Error(err)
	}
}

// failing returns a worker that fails all jobs of the test for good.
func failing(t *testing.T, client *howdah.Client) *howdah.Worker {
	worker := client.NewWorker(howdah.WorkerConfig{})
	worker.Handle(typeName(t), func(context.Context, *howdah.Job) ([]byte, error) {
		return nil, howdah.Fatal(errors.New("broken"))
	})
	return worker
}

func TestAnAppliedScheduleIsCreatedReplacedPausedRunAndDeleted(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t), t.Context()
	job, err := howdah.NewJob(typeName(t), "x", howdah.Priority(3))
	must(t, err)
	// It starts later, so that it does not fire between the two calls.
	later := howdah.Between(time.Now().Add(time.Hour), time.Time{})
	first, err := client.ApplySchedule(ctx, typeName(t), job, howdah.Every(time.Hour), later)
	must(t, err)
	same, err := client.ApplySchedule(ctx, typeName(t), job, howdah.Every(time.Hour), later)
	must(t, err)
	if len(first.NextTimes) != 10 || !first.NextTimes[9].AsTime().Equal(same.NextTimes[9].AsTime()) {
		t.Error(first, same)
	}
	must(t, client.PauseSchedule(ctx, typeName(t)))
	end := time.Now().Add(72 * time.Hour)
	_, err = client.ApplySchedule(ctx, typeName(t), job, howdah.Cron("30 2 * * *", "Europe/Berlin"),
		howdah.Overlap(howdahv1.OverlapPolicy_OVERLAP_POLICY_SKIP), howdah.Jitter(time.Minute), howdah.Between(time.Time{}, end))
	must(t, err)
	changed, err := client.GetSchedule(ctx, typeName(t))
	must(t, err)
	if !changed.Paused || changed.GetCron().GetTimeZone() != "Europe/Berlin" || changed.Overlap != howdahv1.OverlapPolicy_OVERLAP_POLICY_SKIP ||
		changed.Jitter.AsDuration() != time.Minute || changed.StartTime != nil || changed.EndTime.AsTime().Unix() != end.Unix() {
		t.Error(changed)
	}
	must(t, client.ResumeSchedule(ctx, typeName(t)))
	fired, err := client.RunSchedule(ctx, typeName(t))
	must(t, err)
	if job := state(t, fired.Id); job.Priority != 3 {
		t.Error(job)
	}
	found := false
	for schedule, err := range client.ListSchedules(ctx) {
		must(t, err)
		found = found || schedule.Name == typeName(t) && !schedule.Paused
	}
	if !found {
		t.Error("not listed")
	}
	must(t, client.DeleteSchedule(ctx, typeName(t)))
	if err := client.DeleteSchedule(ctx, typeName(t)); !errors.Is(err, howdah.ErrNotFound) {
		t.Error(err)
	}
}

func TestAppliedSettingsOfATaskTypeReplaceTheEarlierOnesAndKeepAPause(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t), t.Context()
	if _, err := client.GetTaskType(ctx, typeName(t)); !errors.Is(err, howdah.ErrNotFound) || !strings.Contains(err.Error(), typeName(t)) {
		t.Error(err)
	}
	must(t, client.ApplyTaskType(ctx, typeName(t), &howdahv1.TaskTypeSettings{MaxAttempts: 3, MaxRunning: 7, Paused: true}))
	found, err := client.GetTaskType(ctx, typeName(t))
	must(t, err)
	if found.Settings.Paused || found.Settings.MaxAttempts != 3 || found.Settings.MaxRunning != 7 {
		t.Error(found)
	}
	must(t, client.PauseTaskType(ctx, typeName(t)))
	must(t, client.ApplyTaskType(ctx, typeName(t), &howdahv1.TaskTypeSettings{MaxAttempts: 4}))
	found, err = client.GetTaskType(ctx, typeName(t))
	must(t, err)
	if !found.Settings.Paused || found.Settings.MaxAttempts != 4 || found.Settings.MaxRunning != 0 {
		t.Error(found)
	}
	must(t, client.ResumeTaskType(ctx, typeName(t)))
	found, err = client.GetTaskType(ctx, typeName(t))
	must(t, err)
	if found.Settings.Paused || found.Settings.MaxAttempts != 4 {
		t.Error(found)
	}
}
