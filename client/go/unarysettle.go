package howdah

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"howdah.dev/go/howdahv1"
)

// To a proxy, a stream is one request, and some proxies limit the bytes of a request. If a stream breaks while more
// than unaryThreshold bytes are unanswered, the next stream may break at the same byte, again and again. So outcomes
// are then sent by SettleJobs, and enqueues by EnqueueJobs, a few at a time. A unary call that is too large fails with
// HTTP 413; a stream is only cut. maxUnaryBytes is the maximum size of a SettleJobs call with more than one outcome.
const unaryThreshold, maxUnaryBytes = 4 << 10, 64 << 10

// unarySettles holds the outcomes to send by SettleJobs.
type unarySettles struct {
	waiting  []*attempt
	busy     bool // A call is pending, or the next one waits for its backoff.
	maxBytes int
}

// startUnarySettle makes the next SettleJobs call, if outcomes are queued for it. The caller holds the lock.
func (s *session) startUnarySettle() {
	u := &s.unary
	if u.busy || len(u.waiting) == 0 {
		return
	}
	bytes, ids, request := 0, map[int64]bool{}, &howdahv1.SettleJobsRequest{}
	for _, a := range u.waiting {
		bytes += proto.Size(a.outcome)
		if len(ids) > 0 && (bytes > u.maxBytes || ids[a.job.Id]) {
			break
		}
		ids[a.job.Id] = true
		request.Outcomes = append(request.Outcomes, a.outcome)
	}
	sent := u.waiting[:len(request.Outcomes)]
	u.waiting, u.busy = u.waiting[len(sent):], true
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.c.cfg.RequestTimeout)
		defer cancel()
		answer, err := howdahv1.NewWorkerServiceClient(s.c).SettleJobs(ctx, request)
		defer s.runSettledCallbacks()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.finishUnarySettle(sent, answer.GetResults(), err) {
			u.busy = false
			s.startUnarySettle()
		} else {
			s.after(s.retryBackoff.next(), func() {
				u.busy = false
				s.startUnarySettle()
			})
		}
		s.stateChanged()
	}()
}

// finishUnarySettle handles the result of a SettleJobs call. It returns false if the next call must wait for a backoff.
func (s *session) finishUnarySettle(sent []*attempt, results []*howdahv1.SettleResult, err error) bool {
	u := &s.unary
	for _, result := range results {
		s.handleSettleResult(result)
	}
	tooLarge := errors.Is(err, ErrRequestTooLarge)
	switch {
	case tooLarge && len(sent) > 1:
		u.maxBytes /= 2
		u.waiting = append(sent, u.waiting...)
		return true
	case tooLarge:
		a := sent[0]
		text := fmt.Sprintf("the outcome takes %d bytes and does not reach the broker: %v", proto.Size(a.outcome), err)
		s.logFailure("the outcome is too large for a proxy: the job fails", a.job, true, "error", err)
		a.outcome = OutcomeOf(a.job, nil, Fatal(errors.New(text)))
	case isTransient(err):
		u.waiting = append(sent, u.waiting...)
		return false
	case err != nil: // A broker that refuses SettleJobs may still accept the outcomes on a stream.
		s.log.Warn("howdah: a call with outcomes was refused; sending the outcomes on the stream", "error", err)
	}
	for _, a := range sent {
		if a.unary {
			a.unary = false
			s.queue(a)
		}
	}
	return true
}
