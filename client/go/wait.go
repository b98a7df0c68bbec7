package howdah

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"howdah.dev/go/howdahv1"
)

const (
	// Longest single WaitJobs call. A wait consists of many calls, because proxies end calls after 15 s (Envoy) to a
	// minute. Also, a broker that disappears silently is noticed only at the end of a call.
	longestWaitCall = 10 * time.Second
	// Time that the broker has to answer after the wait time of a WaitJobs call has passed, before it counts as silent.
	waitSlack = 2 * time.Second
)

// errWaitOver is the broker's answer if the wait time of a WaitJobs call passes before all jobs have ended.
var errWaitOver error = &Error{Code: codes.DeadlineExceeded, Reason: "DEADLINE_EXCEEDED"}

// Wait yields each job once, with its result, as soon as it is finished or dead. It ends after the last job, or with an
// error: the context's error, [ErrNotFound] for an unknown id, or another error of the broker. It continues while
// brokers restart.
func (c *Client) Wait(ctx context.Context, ids ...int64) iter.Seq2[*howdahv1.Job, error] {
	return func(yield func(*howdahv1.Job, error) bool) {
		w := waiting{c: c, pending: slices.Clone(ids)}
		for len(w.pending) > 0 {
			at, began := c.current.Load(), time.Now()
			wait, timeout := w.nextTimes(ctx)
			done, err := w.call(ctx, wait, timeout, yield)
			if done {
				return
			}
			err = c.brokers[at].withBroker(err)
			waitOver := errors.Is(err, errWaitOver)
			switch {
			case ctx.Err() != nil || !waitOver && !isTransient(err):
				yield(nil, err)
				return
			case waitOver && time.Since(began) > wait-waitSlack:
				w.proven, w.retryBackoff = true, backoff{}
				continue
			case waitOver:
				w.proven = true
			default:
				w.proven = false
				w.failedCalls++
				c.switchFrom(at)
			}
			sleep(ctx, w.retryBackoff.next())
		}
	}
}

// waiting is the state of one Wait.
type waiting struct {
	c            *Client
	pending      []int64
	failedCalls  int  // Number of calls to brokers that did not answer.
	proven       bool // The broker of the last call has answered within this wait.
	retryBackoff backoff
}

// nextTimes returns how long the broker should wait in the next call, and the timeout of the call. Until the broker has
// answered, the remaining time is divided among the brokers not yet tried.
func (w *waiting) nextTimes(ctx context.Context) (wait, timeout time.Duration) {
	untried := len(w.c.brokers) - w.failedCalls%len(w.c.brokers)
	if w.proven {
		untried = 1
	}
	remaining := 24 * time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		remaining = max(0, time.Until(deadline))
	}
	share := remaining / time.Duration(untried)
	if untried == 1 {
		wait = min(share, longestWaitCall)
		return wait, wait + waitSlack
	}
	return min(share*3/4, longestWaitCall), max(waitSlack/2, min(share, longestWaitCall+waitSlack))
}

// call makes one WaitJobs call, and passes ended jobs to yield. It returns done when all jobs have ended, or when the
// caller stops the iteration.
func (w *waiting) call(
	ctx context.Context, wait, timeout time.Duration, yield func(*howdahv1.Job, error) bool,
) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request := &howdahv1.WaitJobsRequest{Ids: w.pending, Timeout: durationpb.New(wait)}
	stream, err := howdahv1.NewJobServiceClient(w.c).WaitJobs(ctx, request)
	for err == nil {
		var answer *howdahv1.WaitJobsResponse
		if answer, err = stream.Recv(); err != nil {
			break
		}
		before := len(w.pending)
		w.pending = slices.DeleteFunc(slices.Clone(w.pending), func(id int64) bool { return id == answer.Job.Id })
		w.retryBackoff = backoff{}
		if len(w.pending) < before && !yield(answer.Job, nil) {
			return true, nil
		}
	}
	return err == io.EOF, err
}
