package howdah

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"howdah.dev/go/howdahv1"
)

// While fewOpen Settle messages are unanswered, outcomes gather until a quarter of the slots (1/gathered) have ended
// with one, and the next message takes them all. So messages grow under load, and few slots stand idle because their
// outcomes wait. With maxOpen, nothing is sent until an answer comes.
const fewOpen, maxOpen, gathered = 4, 16, 4

// mayOpen is whether another Settle message may be sent for so many outcomes of a worker with so many slots.
func mayOpen(open, outcomes, slots int) bool {
	return outcomes > 0 && (open < fewOpen || open < maxOpen && outcomes*gathered >= slots)
}

// next is the next message to send, or says that the stream should be left.
func (s *session) next() (message *howdahv1.WorkRequest, leave bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flow
	switch {
	case s.ctx.Err() != nil:
		return nil, true
	case s.stopping && !f.asked && !f.drained:
		f.asked = true
		s.after(drainPatience, func() { f.drained = true })
		return &howdahv1.WorkRequest{Message: &howdahv1.WorkRequest_Drain{Drain: &howdahv1.DrainRequest{}}}, false
	}
	if message = s.nextAsk(); message != nil {
		return message, false
	}
	if mayOpen(f.open, len(s.unsent), s.slots) {
		settle := &howdahv1.Settle{Outcomes: s.gather()}
		return &howdahv1.WorkRequest{Message: &howdahv1.WorkRequest_Settle{Settle: settle}}, false
	}
	empty := len(s.held) == 0
	drained := !f.leaveAt.IsZero() && (empty || time.Until(f.leaveAt) <= 0)
	return nil, drained || empty && s.stopping && f.drained
}

// gather takes the outcomes of the next Settle message.
func (s *session) gather() (outcomes []*howdahv1.Outcome) {
	f, bytes, ids, left := s.flow, 0, map[int64]bool{}, new(int)
	for len(s.unsent) > 0 && len(outcomes) < f.maxOutcomes {
		a := s.unsent[0]
		if size := proto.Size(a.outcome); size > f.maxBytes {
			a.outcome = OutcomeOf(a.job, nil, fmt.Errorf("the result takes %d bytes; the broker accepts %d", size, f.maxBytes))
		}
		bytes += proto.Size(a.outcome) + 16
		// A message names a job only once. After a lost lease there may be two outcomes of one.
		if len(outcomes) > 0 && (bytes > f.maxBytes || ids[a.job.Id]) {
			break
		}
		s.unsent, a.queued, a.batch, ids[a.job.Id] = s.unsent[1:], false, left, true
		outcomes = append(outcomes, a.outcome)
	}
	*left = len(outcomes)
	if f.open++; f.open == 1 {
		f.late.Reset(longestAnswer)
	}
	return outcomes
}

// received handles a message of the broker.
func (s *session) received(message *howdahv1.WorkResponse) {
	defer s.tellSettled()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := message.Message.(type) {
	case *howdahv1.WorkResponse_Jobs:
		for _, job := range m.Jobs.Jobs {
			s.take(job)
		}
	case *howdahv1.WorkResponse_Settled:
		for _, result := range m.Settled.Results {
			s.settled(result)
		}
	case *howdahv1.WorkResponse_Extended:
		s.answered(m.Extended.Results)
	case *howdahv1.WorkResponse_Progressed:
		s.answered(m.Progressed.Results)
	case *howdahv1.WorkResponse_Cancel:
		for _, job := range m.Cancel.Jobs {
			if a := s.held[lease{job.Id, job.Token}]; a != nil && a.outcome == nil {
				s.lose(a, cmp.Or(causes[job.Reason], ErrLeaseLost))
			}
		}
	case *howdahv1.WorkResponse_Drain:
		s.flow.drained, s.flow.useful = true, true
		if m.Drain.ReconnectAfter != nil || m.Drain.Reason == howdahv1.DrainReason_DRAIN_REASON_SHUTDOWN {
			wait := m.Drain.ReconnectAfter.AsDuration()
			s.flow.leaveAt = time.Now().Add(wait)
			s.after(wait, func() {})
		}
	}
	s.check()
}

var causes = map[howdahv1.CancelReason]error{
	howdahv1.CancelReason_CANCEL_REASON_CANCELLED: ErrCancelled,
	howdahv1.CancelReason_CANCEL_REASON_TIMEOUT:   ErrTimeout,
}

// take starts a job.
func (s *session) take(leased *howdahv1.LeasedJob) {
	a := &attempt{job: JobOf(leased, streamCalls{s: s}), kind: s.kinds[leased.TaskType], broker: s.broker}
	a.ctx, a.cancel = context.WithCancelCause(s.jobs)
	if len(s.cfg.Middleware) > 0 {
		a.ctx = context.WithValue(a.ctx, handlerKey{}, handling{s, a})
	}
	if s.held[a.lease()] != nil {
		return
	}
	s.held[a.lease()] = a
	if a.kind == nil || s.stopping {
		s.settle(a, OutcomeOf(a.job, nil, Release()))
		return
	}
	s.running++
	s.handlers.Go(func() {
		outcome := OutcomeOf(a.job, nil, errExited)
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.running--
			if a.over {
				delete(s.held, a.lease())
			} else if a.outcome == nil {
				s.settle(a, outcome)
			}
			s.check()
		}()
		outcome = s.call(a)
	})
}

// errExited is for [runtime.Goexit], which the FailNow of a test calls.
var errExited = errors.New("the handler ended its goroutine")

func (a *attempt) lease() lease { return lease{a.job.Id, a.job.Token} }

// lose ends an attempt whose lease the broker has ended.
func (s *session) lose(a *attempt, cause error) {
	a.over = true
	a.cancel(cause)
}

// settle notes how an attempt has ended.
func (s *session) settle(a *attempt, outcome *howdahv1.Outcome) {
	a.outcome = outcome
	a.cancel(nil)
	s.queue(a)
}

// queue lets an outcome be sent, once more perhaps.
func (s *session) queue(a *attempt) {
	if !a.queued && s.held[a.lease()] == a {
		a.queued, a.batch = true, nil
		s.unsent = append(s.unsent, a)
	}
}

// settled handles the broker's answer to an outcome.
func (s *session) settled(result *howdahv1.SettleResult) {
	a := s.held[lease{result.Id, result.Token}]
	if a == nil || a.batch == nil {
		return
	}
	if *a.batch--; *a.batch == 0 {
		s.flow.late.Stop()
		if s.flow.open--; s.flow.open > 0 {
			s.flow.late.Reset(longestAnswer)
		}
	}
	a.batch = nil
	switch {
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_UNAVAILABLE:
		s.after(s.again.next(), func() { s.queue(a) })
		return
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_INVALID && !a.refused:
		s.log.Warn("howdah: the broker refused the outcome", "job", result.Id, "message", result.Message)
		a.refused = true
		s.settle(a, OutcomeOf(a.job, nil, errors.New("the outcome was refused: "+result.Message)))
		return
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_OK:
		s.flow.useful = true
		s.noteSettled(a, nil)
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_INVALID:
		s.log.Warn("howdah: the broker refused the outcome for good", "job", result.Id, "message", result.Message)
		s.noteSettled(a, &Error{Code: codes.InvalidArgument, Reason: "INVALID", Message: result.Message})
	default:
		s.log.Warn("howdah: the lease was lost before the outcome arrived", "job", result.Id)
		s.noteSettled(a, ErrLeaseLost)
	}
	s.again = pauses{}
	delete(s.held, a.lease())
	if s.patience != nil {
		s.patience.Reset(storePatience)
	}
}
