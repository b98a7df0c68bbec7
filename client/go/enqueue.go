package howdah

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"howdah.dev/go/howdahv1"
)

// Option sets options of a job. Those without a function here are fields of the message, which names their bounds:
//
//	client.Enqueue(ctx, "email.send", email, howdah.Delay(time.Minute), func(job *howdahv1.NewJob) { job.Priority = -5 })
type Option = func(job *howdahv1.NewJob)

// Key lets at most one unfinished job of the type have this key. The policy says what an enqueue does when there is
// one; default: it stays as it is.
func Key(key string, policy ...howdahv1.KeyPolicy) Option {
	return func(job *howdahv1.NewJob) {
		job.Key = key
		if len(policy) > 0 {
			job.KeyPolicy = policy[0]
		}
	}
}

// Tags adds texts by which the job is found later, such as a customer or a batch (SearchJobs, `howdah search`). At most
// 16, each 1 to 64 bytes; the same one twice counts once. Handlers find them in the Tags of their [Job].
func Tags(tags ...string) Option {
	return func(job *howdahv1.NewJob) { job.Tags = append(job.Tags, tags...) }
}

// Delay starts the job after this time.
func Delay(d time.Duration) Option {
	return func(job *howdahv1.NewJob) { job.Start = &howdahv1.NewJob_Delay{Delay: durationpb.New(d)} }
}

// RunAt starts the job at this time of the database's clock.
func RunAt(t time.Time) Option {
	return func(job *howdahv1.NewJob) { job.Start = &howdahv1.NewJob_RunAt{RunAt: timestamppb.New(t)} }
}

// Timeout limits the time of an attempt, unless its worker extends it.
func Timeout(d time.Duration) Option {
	return func(job *howdahv1.NewJob) { job.Timeout = durationpb.New(d) }
}

// ExpireAfter lets the job expire if it has not started within this time.
func ExpireAfter(d time.Duration) Option {
	return func(job *howdahv1.NewJob) { job.Expiry = &howdahv1.NewJob_ExpireAfter{ExpireAfter: durationpb.New(d)} }
}

// NewJob makes a job to enqueue. A payload of []byte is stored as it is, a [proto.Message] in its binary form, any
// other as JSON, and nil as nothing.
func NewJob(taskType string, payload any, options ...Option) (*howdahv1.NewJob, error) {
	bytes, err := encode(payload)
	if err != nil {
		return nil, &Error{Code: codes.InvalidArgument, Field: "payload", Message: err.Error()}
	}
	job := &howdahv1.NewJob{TaskType: taskType, Payload: bytes}
	for _, set := range options {
		set(job)
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

// EnqueueFunc stores jobs: all of them or none.
type EnqueueFunc func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error)

// Enqueuer is a [Client], a [Producer], or the recorder of the package howdahtest.
type Enqueuer interface {
	Enqueue(ctx context.Context, taskType string, payload any, options ...Option) (*howdahv1.EnqueuedJob, error)
	EnqueueAll(ctx context.Context, jobs ...*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error)
}

// Enqueue stores a job, made as by [NewJob]. When it returns, the job is committed. If no broker answers, it tries
// again until the context's deadline (or RequestTimeout), with one request key, so that nothing is stored twice.
// After an error that is retryable, the job may be stored or not.
func (c *Client) Enqueue(
	ctx context.Context, taskType string, payload any, options ...Option,
) (*howdahv1.EnqueuedJob, error) {
	return one(ctx, c, taskType, payload, options)
}

func one(ctx context.Context, to Enqueuer, taskType string, payload any, options []Option) (*howdahv1.EnqueuedJob, error) {
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

// EnqueueAll stores up to 10,000 jobs in one transaction: all of them or none.
func (c *Client) EnqueueAll(ctx context.Context, jobs ...*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
	return c.enqueue(c.watched(ctx), jobs)
}

// EnqueueWithKey does so with a request key of the caller. It is safe to repeat for 24 hours, from anywhere: the same
// key with the same jobs returns the same ids. With other jobs it fails with [ErrAlreadyExists].
func (c *Client) EnqueueWithKey(
	ctx context.Context, key string, jobs ...*howdahv1.NewJob,
) ([]*howdahv1.EnqueuedJob, error) {
	return c.enqueue(c.watched(context.WithValue(ctx, requestKey{}, key)), jobs)
}

type requestKey struct{}

// RequestKey tells middleware whether the caller has given a request key: then the same jobs must be sent each time.
func RequestKey(ctx context.Context) (key string, ok bool) {
	key, ok = ctx.Value(requestKey{}).(string)
	return key, ok
}

func (c *Client) enqueueOnce(ctx context.Context, jobs []*howdahv1.NewJob) (answers []*howdahv1.EnqueuedJob, err error) {
	defer func() { enqueueingOf(ctx).ended(answers, err) }()
	if len(jobs) == 0 {
		return nil, nil
	}
	if key, ok := RequestKey(ctx); ok {
		return c.send(ctx, jobs, key)
	}
	answers, err = c.send(ctx, jobs, newRequestKey())
	return storedByUs(answers, jobs), err
}

func (c *Client) send(ctx context.Context, jobs []*howdahv1.NewJob, key string) ([]*howdahv1.EnqueuedJob, error) {
	request := &howdahv1.EnqueueJobsRequest{Jobs: jobs, RequestKey: key}
	answer, err := howdahv1.NewJobServiceClient(c).EnqueueJobs(ctx, request)
	if err == nil && len(answer.Jobs) != len(jobs) {
		err = &Error{Code: codes.Internal, Message: "the broker answered for another number of jobs"}
	}
	return answer.GetJobs(), err
}

// storedByUs: with the request key of one call, a job without a key that exists was stored by an earlier try of it.
func storedByUs(answers []*howdahv1.EnqueuedJob, jobs []*howdahv1.NewJob) []*howdahv1.EnqueuedJob {
	for i, answer := range answers {
		if !answer.IsNew && jobs[i].Key == "" {
			answer.IsNew, answer.Outcome = true, howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_NEW
		}
	}
	return answers
}

// newRequestKey begins with the time, so that keys of the same minute are neighbours in the database's index.
func newRequestKey() string {
	return fmt.Sprintf("%012x%04x%016x", time.Now().UnixMilli(), rand.Uint64()>>48, rand.Uint64())
}

// Wait yields each of the jobs once, with its result, as soon as it is finished or dead. It ends after the last one, or
// with an error: that of the context, [ErrNotFound] for an unknown id, or another one of the broker.
func (c *Client) Wait(ctx context.Context, ids ...int64) iter.Seq2[*howdahv1.Job, error] {
	return func(yield func(*howdahv1.Job, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		left := slices.Clone(ids)
		for pause := (pauses{}); len(left) > 0; sleep(ctx, pause.next()) {
			at := c.current.Load()
			request := &howdahv1.WaitJobsRequest{Ids: left, Timeout: durationpb.New(24 * time.Hour)}
			stream, err := howdahv1.NewJobServiceClient(c).WaitJobs(ctx, request)
			for err == nil {
				var answer *howdahv1.WaitJobsResponse
				if answer, err = stream.Recv(); err == nil {
					left = slices.DeleteFunc(left, func(id int64) bool { return id == answer.Job.Id })
					pause = pauses{}
					if !yield(answer.Job, nil) {
						return
					}
				}
			}
			if err == io.EOF {
				return
			}
			if err = c.brokers[at].explain(err); !isPassing(err) || ctx.Err() != nil {
				yield(nil, err)
				return
			}
			c.moveOn(at)
		}
	}
}
