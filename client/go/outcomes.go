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

// Limits on Settle messages. While at least eagerSettles messages are unanswered, outcomes accumulate until they number
// a quarter of the slots (1/slotFraction). The next message then takes all of them. So messages grow under load, and
// few slots are idle because their outcomes wait. While maxSettles messages are unanswered, no outcome is sent.
const eagerSettles, maxSettles, slotFraction = 4, 16, 4

// maySettle returns whether another Settle message may be sent, given the numbers of unanswered messages, of outcomes
// to send and of the worker's slots.
func maySettle(unanswered, outcomes, slots int) bool {
	return outcomes > 0 && (unanswered < eagerSettles || unanswered < maxSettles && outcomes*slotFraction >= slots)
}

// next returns the next message of the worker to the broker, or nil. leave reports whether the worker must leave the
// stream.
func (s *session) next() (message *howdahv1.WorkRequest, leave bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := s.stream
	switch {
	case s.ctx.Err() != nil:
		return nil, true
	case stream.pinged:
		stream.pinged = false
		return &howdahv1.WorkRequest{Message: &howdahv1.WorkRequest_Pong{Pong: &howdahv1.Pong{}}}, false
	case s.stopping && !stream.drainRequested && !stream.drained:
		stream.drainRequested = true
		s.after(drainTimeout, func() { stream.drained = true })
		return &howdahv1.WorkRequest{Message: &howdahv1.WorkRequest_Drain{Drain: &howdahv1.DrainRequest{}}}, false
	}
	// A smaller window precedes the outcomes that make room in it.
	if message = s.nextWindow(); message != nil {
		return message, false
	}
	if message = s.nextLeaseRequest(); message != nil {
		return message, false
	}
	if maySettle(stream.openSettles, len(s.unsent), cap(s.slots)) {
		settle := &howdahv1.Settle{Outcomes: s.gather()}
		return &howdahv1.WorkRequest{Message: &howdahv1.WorkRequest_Settle{Settle: settle}}, false
	}
	empty := len(s.held) == 0
	reconnect := !stream.reconnectAt.IsZero() && (empty || time.Until(stream.reconnectAt) <= 0)
	return nil, reconnect || empty && s.stopping && stream.drained
}

// gather takes the outcomes for the next Settle message from the queue.
func (s *session) gather() (outcomes []*howdahv1.Outcome) {
	stream, bytes, ids, unanswered := s.stream, 0, map[int64]bool{}, new(int)
	for len(s.unsent) > 0 && len(outcomes) < stream.maxOutcomes {
		a := s.unsent[0]
		if size := proto.Size(a.outcome); size > stream.maxBytes {
			err := fmt.Errorf("the result takes %d bytes; the broker accepts at most %d", size, stream.maxBytes)
			s.logFailure("the result is too large: the attempt fails", a.job, false, "error", err)
			a.outcome = OutcomeOf(a.job, nil, err)
		}
		bytes += proto.Size(a.outcome) + 16
		// A Settle message may name a job only once. A job that was delivered again after a lost lease may have two
		// outcomes, so the second one waits for a later message.
		if len(outcomes) > 0 && (bytes > stream.maxBytes || ids[a.job.Id]) {
			break
		}
		s.unsent, a.queued, a.batch, ids[a.job.Id] = s.unsent[1:], false, unanswered, true
		outcomes = append(outcomes, a.outcome)
	}
	*unanswered = len(outcomes)
	if stream.openSettles++; stream.openSettles == 1 {
		stream.settleTimer.Reset(settleTimeout)
	}
	return outcomes
}

// received handles a message of the broker.
func (s *session) received(message *howdahv1.WorkResponse) {
	defer s.runSettledCallbacks()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := message.Message.(type) {
	case *howdahv1.WorkResponse_Jobs:
		for _, job := range m.Jobs.Jobs {
			s.take(job)
		}
	case *howdahv1.WorkResponse_Settled:
		for _, result := range m.Settled.Results {
			s.handleSettleResult(result)
		}
	case *howdahv1.WorkResponse_Extended:
		s.handleLeaseResults(m.Extended.Results)
	case *howdahv1.WorkResponse_Progressed:
		s.handleLeaseResults(m.Progressed.Results)
	case *howdahv1.WorkResponse_Cancel:
		for _, job := range m.Cancel.Jobs {
			if a := s.held[lease{job.Id, job.Token}]; a != nil && a.outcome == nil {
				s.lose(a, cmp.Or(causes[job.Reason], ErrLeaseLost))
			}
		}
	case *howdahv1.WorkResponse_Ping:
		// The goroutine that sends the Pong runs no handlers, so a blocking handler does not delay it.
		s.stream.pinged = true
	case *howdahv1.WorkResponse_Drain:
		s.stream.drained, s.stream.proven = true, true
		if m.Drain.ReconnectAfter != nil || m.Drain.Reason == howdahv1.DrainReason_DRAIN_REASON_SHUTDOWN {
			wait := m.Drain.ReconnectAfter.AsDuration()
			s.stream.reconnectAt = time.Now().Add(wait)
			s.after(wait, func() {})
		}
	}
	s.stateChanged()
}

var causes = map[howdahv1.CancelReason]error{
	howdahv1.CancelReason_CANCEL_REASON_CANCELLED: ErrCancelled,
	howdahv1.CancelReason_CANCEL_REASON_TIMEOUT:   ErrTimeout,
}

// take runs the handler of a received job in a new goroutine. It releases the job if the worker is stopping or has no
// handler for the task type.
func (s *session) take(leased *howdahv1.LeasedJob) {
	a := &attempt{job: JobOf(leased, streamCalls{s: s}), taskType: s.types[leased.TaskType], broker: s.broker}
	a.ctx, a.cancel = context.WithCancelCause(s.handlerCtx)
	if len(s.cfg.Middleware) > 0 {
		a.ctx = context.WithValue(a.ctx, handlerKey{}, handling{s, a})
	}
	if s.held[a.lease()] != nil {
		return
	}
	s.held[a.lease()] = a
	if a.taskType == nil || s.stopping {
		s.settle(a, OutcomeOf(a.job, nil, Release()))
		return
	}
	s.running++
	a.inWindow, a.taskType.held = true, a.taskType.held+1
	s.handlers.Go(func() {
		outcome := OutcomeOf(a.job, nil, errExited)
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.running--
			if a.leaseLost {
				delete(s.held, a.lease())
			} else if a.outcome == nil {
				s.settle(a, outcome)
			}
			if nack := outcome.GetNack(); nack != nil && nack.Details != "" {
				s.logFailure("the handler failed", a.job, nack.NoRetry, "error", nack.Error, "details", nack.Details)
			} else if nack != nil {
				s.logFailure("the handler failed", a.job, nack.NoRetry, "error", nack.Error)
			}
			s.stateChanged()
		}()
		outcome = s.call(a)
	})
}

// errExited is the error of a handler that calls [runtime.Goexit], as FailNow of a test does.
var errExited = errors.New("the handler ended its goroutine")

func (a *attempt) lease() lease { return lease{a.job.Id, a.job.Token} }

// lose ends the context of a handler whose lease is lost. When the handler returns, its outcome is dropped.
func (s *session) lose(a *attempt, cause error) {
	a.leaseLost = true
	a.leaveWindow()
	a.cancel(cause)
}

// leaveWindow records that the job neither runs nor waits for a slot with a valid lease.
func (a *attempt) leaveWindow() {
	if a.inWindow {
		a.inWindow = false
		a.taskType.held--
	}
}

// settle records the outcome of an attempt and queues it.
func (s *session) settle(a *attempt, outcome *howdahv1.Outcome) {
	a.outcome = outcome
	a.leaveWindow()
	a.cancel(nil)
	s.queue(a)
}

// queue queues an outcome to send or resend on the stream.
func (s *session) queue(a *attempt) {
	if !a.queued && !a.unary && s.held[a.lease()] == a {
		a.queued, a.batch = true, nil
		s.unsent = append(s.unsent, a)
	}
}

// handleSettleResult handles the broker's answer to an outcome.
func (s *session) handleSettleResult(result *howdahv1.SettleResult) {
	a := s.held[lease{result.Id, result.Token}]
	if a == nil || a.batch == nil && !a.unary {
		return
	}
	if a.batch != nil {
		if *a.batch--; *a.batch == 0 {
			s.stream.settleTimer.Stop()
			if s.stream.openSettles--; s.stream.openSettles > 0 {
				s.stream.settleTimer.Reset(settleTimeout)
			}
		}
	}
	a.batch, a.unary = nil, false
	switch {
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_UNAVAILABLE:
		s.after(s.retryBackoff.next(), func() { s.queue(a) })
		return
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_INVALID && !a.refused:
		s.logFailure("the broker refused the outcome: the attempt fails", a.job, false, "message", result.Message)
		a.refused = true
		s.settle(a, OutcomeOf(a.job, nil, errors.New("the outcome was refused: "+result.Message)))
		return
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_OK:
		s.stream.proven = true
		s.queueSettledCallbacks(a, nil)
	case result.Status == howdahv1.SettleStatus_SETTLE_STATUS_INVALID:
		s.logFailure("the broker refused the outcome for good", a.job, true, "message", result.Message)
		s.queueSettledCallbacks(a, &Error{Code: codes.InvalidArgument, Reason: "INVALID", Message: result.Message})
	default:
		s.logFailure("the lease was lost before the outcome arrived", a.job, false)
		s.queueSettledCallbacks(a, ErrLeaseLost)
	}
	s.retryBackoff = backoff{}
	delete(s.held, a.lease())
	if s.confirmTimer != nil {
		s.confirmTimer.Reset(confirmTimeout)
	}
}
