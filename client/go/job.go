package howdah

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"howdah.dev/go/howdahv1"
)

// Job is one attempt of one job, to run now. Its fields are those of [howdahv1.LeasedJob].
type Job struct {
	*howdahv1.LeasedJob
	calls howdahv1.WorkerServiceClient
}

// JobOf is for workers without a stream (PullJobs) and for tests; handlers get theirs from a [Worker].
func JobOf(leased *howdahv1.LeasedJob, calls howdahv1.WorkerServiceClient) *Job {
	return &Job{leased, calls}
}

// Extend sets the deadline to this long from now, 1 ms to 30 days. [ErrLeaseLost]: the worker does not hold the job any
// more.
func (j *Job) Extend(ctx context.Context, d time.Duration) error {
	extension := &howdahv1.Extension{Id: j.Id, Token: j.Token, Duration: durationpb.New(d)}
	answer, err := j.calls.ExtendJobs(ctx, &howdahv1.ExtendJobsRequest{Extensions: []*howdahv1.Extension{extension}})
	return meaning(answer.GetResults(), err)
}

// Progress reports the completed part, 0 to 1, and a text for people. It fails as Extend does.
func (j *Job) Progress(ctx context.Context, fraction float64, text string) error {
	return j.Report(ctx, &howdahv1.ProgressReport{Fraction: &fraction, Text: &text})
}

// SaveCheckpoint stores at most 64 KiB. The next attempt finds them in its Checkpoint, however this one ends. It
// fails as Extend does.
func (j *Job) SaveCheckpoint(ctx context.Context, state []byte) error {
	return j.Report(ctx, &howdahv1.ProgressReport{Checkpoint: append([]byte{}, state...)})
}

// Report reports progress and a checkpoint together. The id and the token are filled in.
func (j *Job) Report(ctx context.Context, report *howdahv1.ProgressReport) error {
	report.Id, report.Token = j.Id, j.Token
	request := &howdahv1.ReportProgressRequest{Reports: []*howdahv1.ProgressReport{report}}
	answer, err := j.calls.ReportProgress(ctx, request)
	return meaning(answer.GetResults(), err)
}

func meaning(results []*howdahv1.SettleResult, err error) error {
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

// Handler runs a job. The bytes are the job's result. An error fails the attempt, which is tried again by the job's
// retry policy, unless it is one of [RetryAfter], [Fatal], [Snooze], [Release] and [NextStage].
//
// The context ends when the handler should give up the job. Its [context.Cause] is then [ErrCancelled], [ErrTimeout],
// [ErrLeaseLost] or [ErrStopping]. After the first three, what the handler returns has no effect.
type Handler func(ctx context.Context, job *Job) ([]byte, error)

// JSON makes a handler whose payload and result are JSON. A payload that is not, is a fatal failure. An empty payload
// is the zero value, and the result of a struct{} or a nil any is empty.
func JSON[In, Out any](f func(context.Context, *Job, In) (Out, error)) Handler {
	return typed(f, func(payload []byte, in *In) error {
		if len(payload) == 0 {
			return nil
		}
		return json.Unmarshal(payload, in)
	})
}

// Proto makes a handler whose payload is a protobuf message. Its result is one too, or is encoded as by [JSON].
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

// outcome is an error that decides what happens to the job.
type outcome struct {
	error
	set func(wire *howdahv1.Outcome, text string, result []byte)
}

func (o *outcome) Unwrap() error { return o.error }

// RetryAfter fails the attempt. The next one starts after this time, at most a year.
func RetryAfter(delay time.Duration, err error) error {
	return &outcome{err, func(wire *howdahv1.Outcome, text string, _ []byte) {
		nack := &howdahv1.Nack{Error: text, RetryAfter: durationpb.New(delay)}
		wire.Outcome = &howdahv1.Outcome_Nack{Nack: nack}
	}}
}

// Fatal fails the job for good: it is not tried again.
func Fatal(err error) error {
	return &outcome{err, func(wire *howdahv1.Outcome, text string, _ []byte) {
		wire.Outcome = &howdahv1.Outcome_Nack{Nack: &howdahv1.Nack{Error: text, NoRetry: true}}
	}}
}

// Snooze lets the job run again after this time, at most a year. The attempt does not count.
func Snooze(delay time.Duration) error {
	return &outcome{errors.New("snoozed"), func(wire *howdahv1.Outcome, _ string, _ []byte) {
		wire.Outcome = &howdahv1.Outcome_Snooze{Snooze: &howdahv1.Snooze{Delay: durationpb.New(delay)}}
	}}
}

// Release lets another worker run the job at once. The attempt does not count.
func Release() error {
	return &outcome{errors.New("released"), func(wire *howdahv1.Outcome, _ string, _ []byte) {
		wire.Outcome = &howdahv1.Outcome_Release{Release: &howdahv1.Release{}}
	}}
}

// NextStage is a success, returned beside the result: the job goes on to this task type instead of its planned next
// stage.
func NextStage(taskType string) error {
	return &outcome{errNextStage, func(wire *howdahv1.Outcome, _ string, result []byte) {
		wire.Outcome = &howdahv1.Outcome_Ack{Ack: &howdahv1.Ack{Result: result, NextStage: taskType}}
	}}
}

var errNextStage = errors.New("next stage")

// The broker truncates errors at 16 KiB, and marks them.
const longestError = 32 << 10

// OutcomeOf is the message for what a handler returned: for workers without a stream (SettleJobs) and for tests.
func OutcomeOf(job *Job, result []byte, err error) *howdahv1.Outcome {
	wire := &howdahv1.Outcome{Id: job.Id, Token: job.Token}
	if err == nil {
		wire.Outcome = &howdahv1.Outcome_Ack{Ack: &howdahv1.Ack{Result: result}}
		return wire
	}
	text := err.Error()
	text = strings.ToValidUTF8(text[:min(len(text), longestError)], "\uFFFD")
	var own *outcome
	if errors.As(err, &own) {
		own.set(wire, text, result)
	} else {
		wire.Outcome = &howdahv1.Outcome_Nack{Nack: &howdahv1.Nack{Error: text}}
	}
	return wire
}
