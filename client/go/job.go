package howdah

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"howdah.dev/go/howdahv1"
)

// Job is one attempt of one job, to run now. It embeds the message [howdahv1.LeasedJob].
type Job struct {
	*howdahv1.LeasedJob
	calls howdahv1.WorkerServiceClient
}

// JobOf makes a [Job] whose methods call the given stub. It is for workers that poll with PullJobs, and for tests. A
// [Worker] makes the jobs of its handlers itself.
func JobOf(leased *howdahv1.LeasedJob, calls howdahv1.WorkerServiceClient) *Job {
	return &Job{leased, calls}
}

// Extend sets the deadline to this long from now, 1 ms to 30 days. [ErrLeaseLost] means that the worker no longer holds
// the job.
func (j *Job) Extend(ctx context.Context, d time.Duration) error {
	extension := &howdahv1.Extension{Id: j.Id, Token: j.Token, Duration: durationpb.New(d)}
	answer, err := j.calls.ExtendJobs(ctx, &howdahv1.ExtendJobsRequest{Extensions: []*howdahv1.Extension{extension}})
	return resultError(answer.GetResults(), err)
}

// Results yields the jobs that this job ran after (NewJob.after, then after_local), with their results, in order. With
// DEPENDENCY_FAILURE_RUN, look at State: a dependency may have failed. A result is unknown (Missing) if the database no
// longer contains the dependency. After an error, the iteration ends.
func (j *Job) Results(ctx context.Context) iter.Seq2[*howdahv1.DependencyResult, error] {
	return func(yield func(*howdahv1.DependencyResult, error) bool) {
		page := j.After
		// The broker left out the first truncated result. It is asked for this one and all after it.
		if cut := slices.IndexFunc(page, (*howdahv1.DependencyResult).GetTruncated); cut >= 0 {
			page = page[:cut]
		}
		for start := int32(0); ; {
			for _, result := range page {
				if !yield(result, nil) {
					return
				}
			}
			if start += int32(len(page)); start >= j.DependencyCount {
				return
			}
			answer, err := j.calls.GetResults(ctx, &howdahv1.GetResultsRequest{Id: j.Id, Start: start})
			if err != nil {
				yield(nil, AsError(err))
				return
			}
			if page = answer.Results; len(page) == 0 {
				return
			}
		}
	}
}

// Progress reports the completed fraction, 0 to 1, and a text for operators, at most 1 KiB. It fails like [Job.Extend].
func (j *Job) Progress(ctx context.Context, fraction float64, text string) error {
	return j.Report(ctx, &howdahv1.ProgressReport{Fraction: &fraction, Text: &text})
}

// SaveCheckpoint stores a checkpoint of at most 64 KiB with the job, replacing the previous one. The next attempt of
// the job gets it in [Job].Checkpoint, however this attempt ends. It fails like [Job.Extend].
func (j *Job) SaveCheckpoint(ctx context.Context, state []byte) error {
	return j.Report(ctx, &howdahv1.ProgressReport{Checkpoint: append([]byte{}, state...)})
}

// Report reports progress and a checkpoint together. It sets the id and the token; unset fields keep their values.
func (j *Job) Report(ctx context.Context, report *howdahv1.ProgressReport) error {
	report.Id, report.Token = j.Id, j.Token
	request := &howdahv1.ReportProgressRequest{Reports: []*howdahv1.ProgressReport{report}}
	if err := checkText(request); err != nil {
		return err
	}
	answer, err := j.calls.ReportProgress(ctx, request)
	return resultError(answer.GetResults(), err)
}

func resultError(results []*howdahv1.SettleResult, err error) error {
	if err != nil || len(results) == 0 {
		return AsError(err)
	}
	switch results[0].Status {
	case howdahv1.SettleStatus_SETTLE_STATUS_OK:
		return nil
	case howdahv1.SettleStatus_SETTLE_STATUS_LEASE_LOST:
		return ErrLeaseLost
	case howdahv1.SettleStatus_SETTLE_STATUS_UNAVAILABLE:
		return &Error{Code: codes.Unavailable, Message: results[0].Message}
	}
	return &Error{Code: codes.InvalidArgument, Message: results[0].Message}
}

// Handler runs a job and returns the job's result. An error fails the attempt, and the job is retried by its retry
// policy. [RetryAfter], [Fatal], [Snooze], [Release] and [NextStage] make errors with another effect.
//
// The context ends when the handler should abandon the job. Its [context.Cause] is then [ErrCancelled], [ErrTimeout],
// [ErrLeaseLost] or [ErrStopping]. After the first three, the handler's outcome has no effect. An exception is
// [ErrLeaseLost] after a long disconnection: the outcome counts if the broker has kept the lease.
type Handler func(ctx context.Context, job *Job) ([]byte, error)

// JSON makes a handler whose payload and result are JSON. If the payload does not parse, the job is dead at once,
// because a retry could not succeed. An empty payload is the zero value of In. A result of struct{} or a nil any is
// stored empty.
func JSON[In, Out any](f func(context.Context, *Job, In) (Out, error)) Handler {
	return typed(f, func(payload []byte, in *In) error {
		if len(payload) == 0 {
			return nil
		}
		return json.Unmarshal(payload, in)
	})
}

// Proto makes a handler whose payload is a protobuf message. If the payload does not parse, the job is dead at once. The
// result is a protobuf message too, or is encoded like a result of [JSON].
func Proto[Msg interface {
	*M
	proto.Message
}, Out, M any](f func(context.Context, *Job, Msg) (Out, error)) Handler {
	return typed(f, func(payload []byte, in *Msg) error {
		*in = new(M)
		return proto.Unmarshal(payload, *in)
	})
}

func typed[In, Out any](f func(context.Context, *Job, In) (Out, error), decode func([]byte, *In) error) Handler {
	return func(ctx context.Context, job *Job) ([]byte, error) {
		var in In
		if err := decode(job.Payload, &in); err != nil {
			return nil, Fatal(fmt.Errorf("the payload is not a %T: %w", in, err))
		}
		out, err := f(ctx, job, in)
		if err != nil && !errors.Is(err, errNextStage) {
			return nil, err
		}
		result, broken := encode(out)
		if broken != nil {
			return nil, Fatal(fmt.Errorf("the result cannot be encoded: %w", broken))
		}
		return result, err
	}
}

// outcome is an error with an effect on the job other than a retry by the retry policy.
type outcome struct {
	error
	set func(wire *howdahv1.Outcome, text string, result []byte)
}

func (o *outcome) Unwrap() error { return o.error }

// RetryAfter makes an error that fails the attempt. The job is retried after this delay, at most a year.
func RetryAfter(delay time.Duration, err error) error {
	return &outcome{err, func(wire *howdahv1.Outcome, text string, _ []byte) {
		nack := &howdahv1.Nack{Error: text, RetryAfter: durationpb.New(delay)}
		wire.Outcome = &howdahv1.Outcome_Nack{Nack: nack}
	}}
}

// Fatal makes an error that fails the job for good, without another retry.
func Fatal(err error) error {
	return &outcome{err, func(wire *howdahv1.Outcome, text string, _ []byte) {
		wire.Outcome = &howdahv1.Outcome_Nack{Nack: &howdahv1.Nack{Error: text, NoRetry: true}}
	}}
}

// Snooze makes an error that lets the job run again after this delay, at most a year. The attempt does not count.
func Snooze(delay time.Duration) error {
	return &outcome{errors.New("snoozed"), func(wire *howdahv1.Outcome, _ string, _ []byte) {
		wire.Outcome = &howdahv1.Outcome_Snooze{Snooze: &howdahv1.Snooze{Delay: durationpb.New(delay)}}
	}}
}

// Release makes an error that lets another worker run the job at once. The attempt does not count.
func Release() error {
	return &outcome{errors.New("released"), func(wire *howdahv1.Outcome, _ string, _ []byte) {
		wire.Outcome = &howdahv1.Outcome_Release{Release: &howdahv1.Release{}}
	}}
}

// NextStage makes an error that counts as success and is returned with the result. The job continues as this task type
// instead of its planned next stage.
func NextStage(taskType string) error {
	return &outcome{errNextStage, func(wire *howdahv1.Outcome, _ string, result []byte) {
		wire.Outcome = &howdahv1.Outcome_Ack{Ack: &howdahv1.Ack{Result: result, NextStage: taskType}}
	}}
}

var errNextStage = errors.New("next stage")

// longestError is the maximum length of an error text that the client sends, in bytes. The broker truncates the text to
// 16 KiB and marks it as truncated.
const longestError = 32 << 10

// OutcomeOf converts the return values of a handler to an outcome. It is for workers that settle with SettleJobs, and
// for tests.
func OutcomeOf(job *Job, result []byte, err error) *howdahv1.Outcome {
	wire := &howdahv1.Outcome{Id: job.Id, Token: job.Token}
	if err == nil {
		wire.Outcome = &howdahv1.Outcome_Ack{Ack: &howdahv1.Ack{Result: result}}
		return wire
	}
	text := shorten(err.Error())
	var special *outcome
	if errors.As(err, &special) {
		special.set(wire, text, result)
	} else {
		wire.Outcome = &howdahv1.Outcome_Nack{Nack: &howdahv1.Nack{Error: text}}
	}
	if nack := wire.GetNack(); nack != nil {
		nack.Details, nack.Place = origin(err)
	}
	if refused := checkText(wire); refused != nil {
		return OutcomeOf(job, nil, Fatal(refused))
	}
	return wire
}

// origin returns the details of an error and the function where it arose, if the error has them: the stack of a panic, or the
// text that the format %+v adds, which is a stack trace for the errors of several packages.
func origin(err error) (details, place string) {
	var special *outcome
	if errors.As(err, &special) {
		err = special.error
	}
	var panicked *panicError
	if errors.As(err, &panicked) {
		details, place = panicked.stack, panicked.place
	} else if details = fmt.Sprintf("%+v", err); details == err.Error() {
		return "", ""
	}
	return shorten(details), place
}

// shorten returns an error text that can be sent: truncated, and repaired if it is not valid UTF-8.
func shorten(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), longestError)], "\uFFFD")
}

// panicError is the error of a handler that panicked.
type panicError struct {
	value        any
	stack, place string
}

func (p *panicError) Error() string { return fmt.Sprintf("the handler panicked: %v", p.value) }
