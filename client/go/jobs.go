package howdah

import (
	"context"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"howdah.dev/go/howdahv1"
)

// GetJob returns a job with payload, result and failures. It fails with [ErrNotFound] if no job has this id.
func (c *Client) GetJob(ctx context.Context, id int64) (*howdahv1.Job, error) {
	answer, err := howdahv1.NewJobServiceClient(c).GetJob(ctx, &howdahv1.GetJobRequest{Id: id})
	return answer.GetJob(), err
}

// ExplainJob explains why a job does not run and what must change first, or how it ended.
func (c *Client) ExplainJob(ctx context.Context, id int64) (*howdahv1.ExplainJobResponse, error) {
	return howdahv1.NewJobServiceClient(c).ExplainJob(ctx, &howdahv1.ExplainJobRequest{Id: id})
}

// CancelJobs cancels unfinished jobs, at most 10,000. It ends the contexts of their handlers with [ErrCancelled]. It
// returns the ids of the jobs that this call has cancelled; the others were finished or never existed.
func (c *Client) CancelJobs(ctx context.Context, ids ...int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	answer, err := howdahv1.NewJobServiceClient(c).CancelJobs(ctx, &howdahv1.CancelJobsRequest{Ids: ids})
	return answer.GetCancelledIds(), err
}

// RetryJobs makes dead and scheduled jobs run now, at most 10,000. It returns the ids of the jobs that run again. A dead
// job whose key another job holds stays dead.
func (c *Client) RetryJobs(ctx context.Context, ids ...int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	request := &howdahv1.RetryJobsRequest{Filter: &howdahv1.JobFilter{Ids: ids}}
	answer, err := howdahv1.NewJobServiceClient(c).RetryJobs(ctx, request)
	return answer.GetRetriedIds(), err
}

// DiscardJobs moves dead jobs to the history, at most 10,000. It returns the ids of the jobs that were dead.
func (c *Client) DiscardJobs(ctx context.Context, ids ...int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	request := &howdahv1.DiscardJobsRequest{Filter: &howdahv1.JobFilter{Ids: ids}}
	answer, err := howdahv1.NewJobServiceClient(c).DiscardJobs(ctx, request)
	return answer.GetDiscardedIds(), err
}

// RerunJobs runs finished jobs again, as new jobs, at most 10,000. It returns for each job the id of the new job, or why
// the job does not run again.
func (c *Client) RerunJobs(ctx context.Context, ids ...int64) ([]*howdahv1.RerunJob, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	request := &howdahv1.RerunJobsRequest{Ids: ids, RequestKey: newRequestKey()}
	answer, err := howdahv1.NewJobServiceClient(c).RerunJobs(ctx, request)
	return answer.GetJobs(), err
}

// ListJobs yields the jobs of a task type in a state, or in all states with JOB_STATE_UNSPECIFIED, without payloads and
// results. Ready jobs come in the order in which they will run, finished jobs newest first. It ends after an error.
func (c *Client) ListJobs(
	ctx context.Context, taskType string, state howdahv1.JobState,
) iter.Seq2[*howdahv1.Job, error] {
	return pages(func(token string) ([]*howdahv1.Job, string, error) {
		request := &howdahv1.ListJobsRequest{TaskType: taskType, State: state, PageToken: token}
		answer, err := howdahv1.NewJobServiceClient(c).ListJobs(ctx, request)
		return answer.GetJobs(), answer.GetNextPageToken(), err
	})
}

// Search is a search for jobs: conditions, which must all hold, and at most one of the criteria Key, HeaderName,
// PayloadText and PayloadPath. It needs a condition or a criterion; an empty text is neither.
type Search struct {
	TaskType string            // Task type of the jobs. Required.
	State    howdahv1.JobState // State of the jobs. Required unless the search is by Key, Tag or WorkerID.
	// Conditions: tag of the jobs (see [Tags]), their keys, and the worker that holds them.
	Tag, FairKey, LimitKey, WorkerID string
	// Conditions: the jobs were enqueued in this period.
	CreatedSince, CreatedBefore time.Time
	// Key of the jobs, including dead and finished jobs that had it.
	Key string
	// Header of the jobs, with its complete value.
	HeaderName, HeaderValue string
	// Text in the payload, case-sensitive. Needs the scope `payload`.
	PayloadText string
	// SQL/JSON path of Postgres, such as `$.order.id == 17`, that holds for the payload. Needs the scope `payload`.
	PayloadPath string
	// Time range: of the end of finished and dead jobs, and of the enqueue of other jobs. Since is required unless the
	// search is by Key, Tag or WorkerID. Until defaults to now.
	Since, Until time.Time
}

// SearchJobs yields the jobs that a search finds, without payloads and results. A search by key or tag uses an index and
// yields the newest jobs first. Other searches read all jobs of the type in the state and time range. It ends after an
// error.
func (c *Client) SearchJobs(ctx context.Context, search Search) iter.Seq2[*howdahv1.Job, error] {
	request, invalid := search.request()
	return pages(func(token string) ([]*howdahv1.Job, string, error) {
		if invalid != nil {
			return nil, "", invalid
		}
		request.PageToken = token
		answer, err := howdahv1.NewJobServiceClient(c).SearchJobs(ctx, request)
		return answer.GetJobs(), answer.GetNextPageToken(), err
	})
}

func (s Search) request() (*howdahv1.SearchJobsRequest, error) {
	request := &howdahv1.SearchJobsRequest{TaskType: s.TaskType, State: s.State}
	var criteria []string
	if s.Key != "" {
		request.Query, criteria = &howdahv1.SearchJobsRequest_Key{Key: s.Key}, append(criteria, "Key")
	}
	if s.HeaderName != "" {
		header := &howdahv1.JobHeader{Name: s.HeaderName, Value: s.HeaderValue}
		request.Query, criteria = &howdahv1.SearchJobsRequest_Header{Header: header}, append(criteria, "HeaderName")
	}
	if s.PayloadText != "" {
		request.Query = &howdahv1.SearchJobsRequest_PayloadText{PayloadText: s.PayloadText}
		criteria = append(criteria, "PayloadText")
	}
	if s.PayloadPath != "" {
		request.Query = &howdahv1.SearchJobsRequest_PayloadPath{PayloadPath: s.PayloadPath}
		criteria = append(criteria, "PayloadPath")
	}
	conditions := &howdahv1.JobConditions{
		Tag: s.Tag, FairKey: s.FairKey, LimitKey: s.LimitKey, WorkerId: s.WorkerID,
		CreatedSince: optionalTime(s.CreatedSince), CreatedBefore: optionalTime(s.CreatedBefore),
	}
	if proto.Size(conditions) > 0 {
		request.Conditions = conditions
	}
	switch {
	case s.HeaderValue != "" && s.HeaderName == "":
		return nil, invalid("query", "HeaderValue needs HeaderName")
	case len(criteria) > 1:
		return nil, invalid("query", "%s are set: a search has at most one of them", strings.Join(criteria, " and "))
	case len(criteria) == 0 && request.Conditions == nil:
		return nil, invalid("query", "a search needs one of Key, HeaderName, PayloadText and PayloadPath, or one of Tag, FairKey, "+
			"LimitKey, WorkerID, CreatedSince and CreatedBefore. Without Key, Tag and WorkerID, it also needs State and Since. "+
			"For all jobs of a task type in a state, call ListJobs")
	}
	request.Since, request.Until = optionalTime(s.Since), optionalTime(s.Until)
	return request, nil
}

func optionalTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// pages yields the items of all pages. next returns the items of the page with this token, and the token of the next
// page; the first and the last token are empty.
func pages[T any](next func(token string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for token := ""; ; {
			items, following, err := next(token)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if token = following; token == "" {
				return
			}
		}
	}
}
