package howdah

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"howdah.dev/go/howdahv1"
)

// run is the goroutine of a producer. It opens streams until the producer is closed and all requests are answered.
func (p *Producer) run() {
	defer close(p.done)
	for at := p.c.current.Load(); p.hasWork(); at++ {
		at %= int64(len(p.c.brokers))
		err := p.c.link(context.Background(), p.c.brokers[at], p.serve)
		if p.requeueUnanswered() && err != nil {
			// A proxy may have cut the stream because it limits the bytes of a request. So these requests are sent by
			// unary calls, which succeed or fail with ErrRequestTooLarge.
			for request := p.nextResend(); request != nil; request = p.nextResend() {
				p.call(request, errEnded)
			}
		}
		if isTransient(err) {
			p.c.cfg.Logger.Debug("howdah: the enqueue stream broke; opening another", "error", err)
			p.c.switchFrom(at)
			time.Sleep(p.retryBackoff.next())
		} else if err != nil {
			// The broker refuses either one of the requests or the whole stream. Single unary calls show which.
			for request, _ := p.next(); request != nil; request, _ = p.next() {
				p.call(request, errEnded)
			}
		}
	}
}

// hasWork waits until there is a request to send. It returns false when the producer is closed and no request is left.
func (p *Producer) hasWork() bool {
	for {
		p.mu.Lock()
		has, closed := len(p.queue)+len(p.resend) > 0, p.closed
		p.mu.Unlock()
		if has || closed {
			return has
		}
		<-p.wake
	}
}

// serve sends requests on one stream until it breaks, or until the producer is closed and all requests are answered.
func (p *Producer) serve(l *link) error {
	stream, err := howdahv1.NewJobServiceClient(l.conn).StreamEnqueue(l.ctx)
	if err != nil {
		return err
	}
	p.alarm = l.alarm // From now on, the timer is the timeout of the oldest unanswered request.
	p.alarm.Stop()
	return duplex(l, stream, p.wake, func() (*howdahv1.StreamEnqueueRequest, bool) {
		request, finished := p.next()
		if request == nil {
			return nil, finished
		}
		request.setBroker(l.broker)
		return request.message, false
	}, p.received)
}

// nextResend returns the next request to resend, or nil. Such a request was unanswered when its stream broke.
func (p *Producer) nextResend() *request {
	p.mu.Lock()
	has := len(p.resend) > 0
	p.mu.Unlock()
	if !has {
		return nil
	}
	next, _ := p.next()
	return next
}

// next returns the next request to send, or nil. It also reports whether to leave the stream, because the producer is
// closed and all requests are answered.
func (p *Producer) next() (*request, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next *request
	switch {
	case len(p.sent) >= p.cfg.MaxInFlight:
		return nil, false
	case len(p.resend) > 0:
		next, p.resend = p.resend[0], p.resend[1:]
	case len(p.queue) > 0:
		next = p.gather()
	default:
		return nil, p.closed && len(p.sent) == 0
	}
	p.sequence++
	next.message.Sequence = p.sequence
	p.sent = append(p.sent, next)
	if len(p.sent) == 1 {
		p.alarm.Reset(p.c.answerTimeout())
	}
	return next, false
}

// setBroker records the broker to which the request is sent, for the OnEnqueued functions of middleware.
func (r *request) setBroker(b *broker) {
	for _, receipt := range r.receipts {
		receipt.callbacks.setBroker(b)
	}
}

func (r *request) cost() (bytes int64) {
	for _, receipt := range r.receipts {
		bytes += receipt.cost
	}
	return bytes
}

// gather makes a request of as many queued submissions as fit into one, but at least one.
func (p *Producer) gather() *request {
	r := &request{message: &howdahv1.StreamEnqueueRequest{RequestKey: newRequestKey()}}
	bytes := int64(0)
	for _, receipt := range p.queue {
		bytes += receipt.cost
		jobs := len(r.message.Jobs) + len(receipt.jobs)
		if len(r.receipts) > 0 && (jobs > p.cfg.MaxBatchJobs || bytes > int64(p.cfg.MaxBatchBytes)) {
			break
		}
		r.receipts = append(r.receipts, receipt)
		r.message.Jobs = append(r.message.Jobs, receipt.jobs...)
	}
	p.queue = p.queue[len(r.receipts):]
	return r
}

// received handles the answer to a request.
func (p *Producer) received(answer *howdahv1.StreamEnqueueResponse) {
	p.mu.Lock()
	index := slices.IndexFunc(p.sent, func(r *request) bool { return r.message.Sequence == answer.Sequence })
	if index < 0 {
		p.mu.Unlock()
		return
	}
	r := p.sent[index]
	p.mu.Unlock()
	p.alarm.Stop()
	if e := answer.Error; e != nil {
		p.call(r, &Error{
			Code: codes.Code(e.Code), Message: e.Message, Field: e.Field, Reason: e.Reason, RetryAfter: e.RetryAfter.AsDuration(),
		})
	} else {
		p.resolve(r, answer.Jobs, nil)
	}
}

// call finishes a request that failed on the stream. After a transient error it sends the request by a unary call. If
// the request is refused, it sends the jobs of each submission by a separate call, so that only refused submissions
// fail.
func (p *Producer) call(r *request, err error) {
	ctx := context.Background()
	r.setBroker(p.c.brokers[p.c.current.Load()])
	var answers []*howdahv1.EnqueuedJob
	if isTransient(err) {
		answers, err = p.c.send(ctx, r.message.Jobs, r.message.RequestKey)
	}
	if errors.Is(err, ErrRequestTooLarge) {
		p.mu.Lock()
		p.cfg.MaxBatchBytes = min(p.cfg.MaxBatchBytes, int(r.cost()/2))
		p.mu.Unlock()
	}
	if len(r.receipts) == 1 || isTransient(err) || isUnauthenticated(err) || err == nil {
		p.resolve(r, answers, err)
		return
	}
	for _, receipt := range r.receipts {
		answers, err := p.c.send(ctx, receipt.jobs, newRequestKey())
		p.finish(receipt, markRepeatsNew(answers, receipt.jobs), err)
	}
	r.receipts = nil
	p.resolve(r, nil, nil)
}

// resolve gives each receipt of a request its part of the answer.
func (p *Producer) resolve(r *request, answers []*howdahv1.EnqueuedJob, err error) {
	if err == nil && len(answers) != len(r.message.Jobs) && r.receipts != nil {
		err = &Error{Code: codes.Internal, Message: "the broker's answer has the wrong number of jobs"}
	}
	for _, receipt := range r.receipts {
		var results []*howdahv1.EnqueuedJob
		if err == nil {
			results, answers = markRepeatsNew(answers[:len(receipt.jobs)], receipt.jobs), answers[len(receipt.jobs):]
		}
		p.finish(receipt, results, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retryBackoff.failures = 0
	p.sent = slices.DeleteFunc(p.sent, func(other *request) bool { return other == r })
	if len(p.sent) > 0 {
		p.alarm.Reset(p.c.answerTimeout())
	}
	notify(p.wake)
}

func (p *Producer) finish(r *Receipt, answers []*howdahv1.EnqueuedJob, err error) {
	r.answers, r.err = answers, err
	r.callbacks.run(answers, err)
	p.budget.Release(r.cost)
	close(r.done)
}

// requeueUnanswered queues the unanswered requests of a broken stream for resending, and fails receipts after
// RequestTimeout. It returns whether more than unaryThreshold bytes were unanswered.
func (p *Producer) requeueUnanswered() (isLarge bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unanswered := int64(0)
	for _, r := range p.sent {
		unanswered += r.cost()
	}
	isExpired := func(r *Receipt) bool { return time.Since(r.since) > p.c.cfg.RequestTimeout }
	errExpired := &Error{Code: codes.DeadlineExceeded, Message: "no broker answered in time; the jobs may be stored or not"}
	p.resend = slices.DeleteFunc(append(p.sent, p.resend...), func(r *request) bool {
		if slices.ContainsFunc(r.receipts, func(r *Receipt) bool { return !isExpired(r) }) {
			return false
		}
		for _, receipt := range r.receipts {
			p.finish(receipt, nil, errExpired)
		}
		return true
	})
	p.sent = nil
	p.queue = slices.DeleteFunc(p.queue, func(r *Receipt) bool {
		if isExpired(r) {
			p.finish(r, nil, errExpired)
		}
		return isExpired(r)
	})
	return unanswered > unaryThreshold
}
