package howdah

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"howdah.dev/go/howdahv1"
)

// run opens streams until the producer is closed and everything is answered.
func (p *Producer) run() {
	defer close(p.done)
	for at := p.c.current.Load(); p.hasWork(); at++ {
		at %= int64(len(p.c.brokers))
		err := p.c.link(context.Background(), p.c.brokers[at], p.serve)
		p.takeBack()
		if isPassing(err) {
			p.c.cfg.Logger.Debug("howdah: the enqueue stream broke; opening another", "error", err)
			p.c.moveOn(at)
			time.Sleep(p.pause.next())
		} else if err != nil {
			// The broker refuses one request, or all: single calls find out which.
			for request, _ := p.next(); request != nil; request, _ = p.next() {
				p.call(request, errEnded)
			}
		}
	}
}

// hasWork waits until there is something to send. False: the producer is closed.
func (p *Producer) hasWork() bool {
	for {
		p.mu.Lock()
		has, closed := len(p.queue)+len(p.again) > 0, p.closed
		p.mu.Unlock()
		if has || closed {
			return has
		}
		<-p.wake
	}
}

// serve sends until the stream breaks, or everything is answered and the producer is closed.
func (p *Producer) serve(l *link) error {
	stream, err := howdahv1.NewJobServiceClient(l.conn).StreamEnqueue(l.ctx)
	if err != nil {
		return err
	}
	p.alarm = l.alarm // From now on it is for the oldest request.
	p.alarm.Stop()
	return duplex(l, stream, p.wake, func() (*howdahv1.StreamEnqueueRequest, bool) {
		request, finished := p.next()
		if request == nil {
			return nil, finished
		}
		request.at(l.broker)
		return request.message, false
	}, p.received)
}

// next is the next request, or says that everything is answered and the producer is closed.
func (p *Producer) next() (*request, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next *request
	switch {
	case len(p.sent) >= p.cfg.MaxInFlight:
		return nil, false
	case len(p.again) > 0:
		next, p.again = p.again[0], p.again[1:]
	case len(p.queue) > 0:
		next = p.gather()
	default:
		return nil, p.closed && len(p.sent) == 0
	}
	p.sequence++
	next.message.Sequence = p.sequence
	p.sent = append(p.sent, next)
	if len(p.sent) == 1 {
		p.alarm.Reset(longestTry)
	}
	return next, false
}

// at notes the broker that the request is sent to.
func (r *request) at(b *broker) {
	for _, receipt := range r.receipts {
		receipt.watched.at(b)
	}
}

// gather makes a request of what fits into one, and of one receipt at least.
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

// received handles an answer.
func (p *Producer) received(answer *howdahv1.StreamEnqueueResponse) {
	p.mu.Lock()
	at := slices.IndexFunc(p.sent, func(r *request) bool { return r.message.Sequence == answer.Sequence })
	if at < 0 {
		p.mu.Unlock()
		return
	}
	r := p.sent[at]
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

// call finishes a request that failed on the stream by single calls. If jobs are refused, those that were submitted
// with others are tried alone.
func (p *Producer) call(r *request, err error) {
	ctx := context.Background()
	r.at(p.c.brokers[p.c.current.Load()])
	var answers []*howdahv1.EnqueuedJob
	if isPassing(err) {
		answers, err = p.c.send(ctx, r.message.Jobs, r.message.RequestKey)
	}
	if len(r.receipts) == 1 || isPassing(err) || isUnauthenticated(err) || err == nil {
		p.resolve(r, answers, err)
		return
	}
	for _, receipt := range r.receipts {
		answers, err := p.c.send(ctx, receipt.jobs, newRequestKey())
		p.finish(receipt, storedByUs(answers, receipt.jobs), err)
	}
	r.receipts = nil
	p.resolve(r, nil, nil)
}

// resolve answers the receipts of a request that was sent.
func (p *Producer) resolve(r *request, answers []*howdahv1.EnqueuedJob, err error) {
	if err == nil && len(answers) != len(r.message.Jobs) && r.receipts != nil {
		err = &Error{Code: codes.Internal, Message: "the broker answered for another number of jobs"}
	}
	for _, receipt := range r.receipts {
		var own []*howdahv1.EnqueuedJob
		if err == nil {
			own, answers = storedByUs(answers[:len(receipt.jobs)], receipt.jobs), answers[len(receipt.jobs):]
		}
		p.finish(receipt, own, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause.failures = 0
	p.sent = slices.DeleteFunc(p.sent, func(other *request) bool { return other == r })
	if len(p.sent) > 0 {
		p.alarm.Reset(longestTry)
	}
	poke(p.wake)
}

func (p *Producer) finish(r *Receipt, answers []*howdahv1.EnqueuedJob, err error) {
	r.answers, r.err = answers, err
	r.watched.ended(answers, err)
	p.room.Release(r.cost)
	close(r.done)
}

// takeBack prepares to send again what was not answered, without what nobody should wait for any more.
func (p *Producer) takeBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	isLate := func(r *Receipt) bool { return time.Since(r.since) > p.c.cfg.RequestTimeout }
	late := &Error{Code: codes.DeadlineExceeded, Message: "no broker has answered; the jobs may be stored or not"}
	p.again = slices.DeleteFunc(append(p.sent, p.again...), func(r *request) bool {
		if slices.ContainsFunc(r.receipts, func(r *Receipt) bool { return !isLate(r) }) {
			return false
		}
		for _, receipt := range r.receipts {
			p.finish(receipt, nil, late)
		}
		return true
	})
	p.sent = nil
	p.queue = slices.DeleteFunc(p.queue, func(r *Receipt) bool {
		if isLate(r) {
			p.finish(r, nil, late)
		}
		return isLate(r)
	})
}
