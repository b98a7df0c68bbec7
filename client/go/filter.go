package howdah

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"howdah.dev/go/howdahv1"
)

// Condition selects jobs of a task type, for [Client.CancelJobsWhere], [Client.RetryJobsWhere] and
// [Client.DiscardJobsWhere]. Several conditions must all hold. Calls refuse a condition that is given twice. They also refuse
// a condition with an empty text, a zero time or an unspecified state, because it would select all jobs of the type.
type Condition struct {
	field protoreflect.Name // Field of JobFilter or JobConditions.
	value protoreflect.Value
}

// InState selects jobs in this state.
func InState(state howdahv1.JobState) Condition {
	return Condition{"state", protoreflect.ValueOfEnum(state.Number())}
}

// InErrorGroup selects jobs whose last error belongs to this group of ListErrorGroups.
func InErrorGroup(group string) Condition {
	return Condition{"error_group", protoreflect.ValueOfString(group)}
}

// HasTag selects jobs with this tag (see [Tags]).
func HasTag(tag string) Condition { return Condition{"tag", protoreflect.ValueOfString(tag)} }

// HasFairKey selects jobs with this fair key (see [FairKey]).
func HasFairKey(key string) Condition { return Condition{"fair_key", protoreflect.ValueOfString(key)} }

// HasLimitKey selects jobs with this limit key (see [LimitKey]).
func HasLimitKey(key string) Condition {
	return Condition{"limit_key", protoreflect.ValueOfString(key)}
}

// HeldBy selects running jobs that the worker with this id holds.
func HeldBy(workerID string) Condition {
	return Condition{"worker_id", protoreflect.ValueOfString(workerID)}
}

// CreatedSince selects jobs that were enqueued at this time or later.
func CreatedSince(t time.Time) Condition { return Condition{"created_since", timeValue(t)} }

// CreatedBefore selects jobs that were enqueued before this time.
func CreatedBefore(t time.Time) Condition { return Condition{"created_before", timeValue(t)} }

// AttemptsAtLeast selects jobs of which at least this many attempts have started.
func AttemptsAtLeast(attempts int32) Condition {
	return Condition{"attempts_at_least", protoreflect.ValueOfInt32(attempts)}
}

// AttemptsAtMost selects jobs of which at most this many attempts have started.
func AttemptsAtMost(attempts int32) Condition {
	return Condition{"attempts_at_most", protoreflect.ValueOfInt32(attempts)}
}

// timeValue returns the value of a field for a time; invalid if the time is zero.
func timeValue(t time.Time) protoreflect.Value {
	if t.IsZero() {
		return protoreflect.Value{}
	}
	return protoreflect.ValueOfMessage(timestamppb.New(t).ProtoReflect())
}

// filterOf returns the message of a filter.
func filterOf(taskType string, conditions []Condition) (*howdahv1.JobFilter, error) {
	filter := &howdahv1.JobFilter{TaskType: taskType}
	for _, condition := range conditions {
		var target proto.Message = filter
		if filter.ProtoReflect().Descriptor().Fields().ByName(condition.field) == nil {
			if filter.Conditions == nil {
				filter.Conditions = &howdahv1.JobConditions{}
			}
			target = filter.Conditions
		}
		fields := target.ProtoReflect()
		field := fields.Descriptor().Fields().ByName(condition.field)
		if fields.Has(field) {
			return nil, invalid(string(condition.field), "%s is given twice", condition.field)
		}
		if condition.value.IsValid() {
			fields.Set(field, condition.value)
		}
		if !fields.Has(field) {
			return nil, invalid(string(condition.field), "%s is empty: it would select all jobs of the task type", condition.field)
		}
	}
	return filter, nil
}

// CancelJobsWhere cancels the unfinished jobs of a task type that meet all conditions, like [Client.CancelJobs]. It makes
// several calls if there are more than 10,000. After an error, it returns the ids of the jobs that the earlier calls have
// cancelled.
func (c *Client) CancelJobsWhere(ctx context.Context, taskType string, conditions ...Condition) ([]int64, error) {
	return where(taskType, conditions, func(filter *howdahv1.JobFilter, token string) ([]int64, string, error) {
		request := &howdahv1.CancelJobsRequest{Filter: filter, PageToken: token}
		answer, err := howdahv1.NewJobServiceClient(c).CancelJobs(ctx, request)
		return answer.GetCancelledIds(), answer.GetNextPageToken(), err
	})
}

// RetryJobsWhere makes the dead jobs of a task type that meet all conditions run now, and the scheduled jobs that have
// failed. It makes several calls and fails like [Client.CancelJobsWhere]. A dead job whose key another job holds stays dead.
func (c *Client) RetryJobsWhere(ctx context.Context, taskType string, conditions ...Condition) ([]int64, error) {
	return where(taskType, conditions, func(filter *howdahv1.JobFilter, token string) ([]int64, string, error) {
		request := &howdahv1.RetryJobsRequest{Filter: filter, PageToken: token}
		answer, err := howdahv1.NewJobServiceClient(c).RetryJobs(ctx, request)
		return answer.GetRetriedIds(), answer.GetNextPageToken(), err
	})
}

// DiscardJobsWhere moves the dead jobs of a task type that meet all conditions to the history. It makes several calls and
// fails like [Client.CancelJobsWhere].
func (c *Client) DiscardJobsWhere(ctx context.Context, taskType string, conditions ...Condition) ([]int64, error) {
	return where(taskType, conditions, func(filter *howdahv1.JobFilter, token string) ([]int64, string, error) {
		request := &howdahv1.DiscardJobsRequest{Filter: filter, PageToken: token}
		answer, err := howdahv1.NewJobServiceClient(c).DiscardJobs(ctx, request)
		return answer.GetDiscardedIds(), answer.GetNextPageToken(), err
	})
}

// where repeats a call until it has handled all jobs of a filter, and returns their ids.
func where(
	taskType string, conditions []Condition, call func(*howdahv1.JobFilter, string) ([]int64, string, error),
) (ids []int64, err error) {
	filter, err := filterOf(taskType, conditions)
	if err != nil {
		return nil, err
	}
	for id, err := range pages(func(token string) ([]int64, string, error) { return call(filter, token) }) {
		if err != nil {
			return ids, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
