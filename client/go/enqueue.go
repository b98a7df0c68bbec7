package howdah

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"howdah.dev/go/howdahv1"
)

// Option sets options of a job: a function of this package such as [Priority] or [Delay]. A function literal sets fields of
// [howdahv1.NewJob] in other ways:
//
//	client.Enqueue(ctx, "email.send", email, howdah.Delay(time.Minute), func(job *howdahv1.NewJob) { job.Headers = headers })
type Option = func(job *howdahv1.NewJob)

// Key sets the job's key: at most one unfinished job of the type has it. The policy decides what an enqueue does when
// another job holds the key. Default: that job is kept unchanged.
func Key(key string, policy ...howdahv1.KeyPolicy) Option {
	return func(job *howdahv1.NewJob) {
		job.Key = key
		if len(policy) > 0 {
			job.KeyPolicy = policy[0]
		}
	}
}

// Header adds a header, which the handler finds in the Headers of its [Job]. At most 64, 8 KiB together.
func Header(name, value string) Option {
	return func(job *howdahv1.NewJob) {
		if job.Headers == nil {
			job.Headers = map[string]string{}
		}
		job.Headers[name] = value
	}
}

// Backoff makes the delay after a failed attempt double from first to most, instead of the retry policy of the task type.
func Backoff(first, most time.Duration) Option {
	return func(job *howdahv1.NewJob) {
		multiplier := 2.0
		job.RetryPolicy = &howdahv1.RetryPolicy{
			Kind:         howdahv1.RetryPolicyKind_RETRY_POLICY_KIND_EXPONENTIAL,
			InitialDelay: durationpb.New(first), Multiplier: &multiplier, MaxDelay: durationpb.New(most),
		}
	}
}

// RetryDelays sets the delay after each failed attempt, instead of the retry policy of the task type. The last one repeats.
func RetryDelays(delays ...time.Duration) Option {
	return func(job *howdahv1.NewJob) {
		job.RetryPolicy = &howdahv1.RetryPolicy{Kind: howdahv1.RetryPolicyKind_RETRY_POLICY_KIND_LIST}
		for _, delay := range delays {
			job.RetryPolicy.Delays = append(job.RetryPolicy.Delays, durationpb.New(delay))
		}
	}
}

// NewJob makes a job to enqueue. A []byte payload is stored unchanged, a [proto.Message] in its binary form, any other
// value as JSON, and nil as an empty payload. Options that exclude each other, such as [Delay] and [RunAt], are an error.
func NewJob(taskType string, payload any, options ...Option) (*howdahv1.NewJob, error) {
	bytes, err := encode(payload)
	if err != nil {
		return nil, invalid("payload", "%s", err)
	}
	job := &howdahv1.NewJob{TaskType: taskType, Payload: bytes}
	if err := apply(job, options); err != nil {
		return nil, err
	}
	return job, nil
}

func encode(value any) ([]byte, error) {
	switch v := value.(type) {
	case nil, struct{}:
		return nil, nil
	case []byte:
		return v, nil
	case proto.Message:
		return proto.Marshal(v)
	}
	return json.Marshal(value)
}

// EnqueueFunc stores jobs atomically.
type EnqueueFunc func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error)

// Enqueuer enqueues jobs: a [Client], a [Producer], or the recorder of the package howdahtest.
type Enqueuer interface {
	Enqueue(ctx context.Context, taskType string, payload any, options ...Option) (*howdahv1.EnqueuedJob, error)
	EnqueueAll(ctx context.Context, jobs ...*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error)
}

// Enqueue stores a job with this payload and these options (see [NewJob]). When it returns, the job is committed. If no
// broker answers, it retries until the context's deadline (or RequestTimeout), with one request key, so that nothing is
// stored twice. After an error that is retryable (see [Error.IsRetryable]), the job may be stored or not.
func (c *Client) Enqueue(
	ctx context.Context, taskType string, payload any, options ...Option,
) (*howdahv1.EnqueuedJob, error) {
	return enqueueOne(ctx, c, taskType, payload, options)
}

func enqueueOne(
	ctx context.Context, to Enqueuer, taskType string, payload any, options []Option,
) (*howdahv1.EnqueuedJob, error) {
	job, err := NewJob(taskType, payload, options...)
	if err != nil {
		return nil, err
	}
	all, err := to.EnqueueAll(ctx, job)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// EnqueueAll stores up to 10,000 jobs in one transaction: all of them or none. It retries like [Client.Enqueue].
func (c *Client) EnqueueAll(ctx context.Context, jobs ...*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
	return c.enqueue(c.withCallbacks(ctx), jobs)
}

// EnqueueWithKey stores jobs like [Client.EnqueueAll], with the caller's request key. This makes the call idempotent for
// 24 hours, from any process: the same key with the same jobs returns the same ids. With other jobs it fails with
// [ErrAlreadyExists].
func (c *Client) EnqueueWithKey(
	ctx context.Context, key string, jobs ...*howdahv1.NewJob,
) ([]*howdahv1.EnqueuedJob, error) {
	return c.enqueue(c.withCallbacks(context.WithValue(ctx, requestKey{}, key)), jobs)
}

type requestKey struct{}

// RequestKey returns the request key of the caller, for middleware. If there is one, repeated calls must send identical
// jobs.
func RequestKey(ctx context.Context) (key string, ok bool) {
	key, ok = ctx.Value(requestKey{}).(string)
	return key, ok
}

func (c *Client) enqueueOnce(ctx context.Context, jobs []*howdahv1.NewJob) (answers []*howdahv1.EnqueuedJob, err error) {
	defer func() { callbacksOf(ctx).run(answers, err) }()
	if len(jobs) == 0 {
		return nil, nil
	}
	if key, ok := RequestKey(ctx); ok {
		return c.send(ctx, jobs, key)
	}
	answers, err = c.send(ctx, jobs, newRequestKey())
	return markRepeatsNew(answers, jobs), err
}

func (c *Client) send(ctx context.Context, jobs []*howdahv1.NewJob, key string) ([]*howdahv1.EnqueuedJob, error) {
	request := &howdahv1.EnqueueJobsRequest{Jobs: jobs, RequestKey: key}
	answer, err := howdahv1.NewJobServiceClient(c).EnqueueJobs(ctx, request)
	if err == nil && len(answer.Jobs) != len(jobs) {
		err = &Error{Code: codes.Internal, Message: "the broker's answer has the wrong number of jobs"}
	}
	return answer.GetJobs(), err
}

// markRepeatsNew marks jobs as new if an earlier attempt of the same call stored them. The call's request key is
// unique, so a job without a job key can only exist already because of such an attempt.
func markRepeatsNew(answers []*howdahv1.EnqueuedJob, jobs []*howdahv1.NewJob) []*howdahv1.EnqueuedJob {
	for i, answer := range answers {
		if !answer.IsNew && jobs[i].Key == "" {
			answer.IsNew, answer.Outcome = true, howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_NEW
		}
	}
	return answers
}

// newRequestKey returns a unique request key. It begins with the time, so that keys of the same minute are neighbours in
// the database's index.
func newRequestKey() string {
	return fmt.Sprintf("%012x%04x%016x", time.Now().UnixMilli(), rand.Uint64()>>48, rand.Uint64())
}
