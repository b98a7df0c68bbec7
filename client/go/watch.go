package howdah

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"howdah.dev/go/howdahv1"
)

// Middleware stands around an enqueue or a handler. What comes later, it learns here; the package otelhowdah does.

type (
	onEnqueued = func(broker string, answers []*howdahv1.EnqueuedJob, err error)
	onSettled  = func(broker string, outcome *howdahv1.Outcome, err error)
)

var errUnconfirmed = &Error{
	Code: codes.Canceled, Reason: "UNCONFIRMED", Message: "the worker ended before the broker confirmed the outcome",
}

// OnEnqueued is for middleware of an enqueue. The function gets the broker's answers or the error, once they are known:
// of [Producer.Submit] that is after the middleware has returned. It also gets the address of the broker that was asked
// last; empty: none was. It must not block. If another middleware refuses the jobs, it is not called.
//
// False: the context is not that of an enqueue of a [Client] or a [Producer], and the function is never called.
func OnEnqueued(ctx context.Context, f func(broker string, answers []*howdahv1.EnqueuedJob, err error)) bool {
	e, ok := ctx.Value(enqueueKey{}).(*enqueueing)
	if ok {
		e.functions = append(e.functions, f)
	}
	return ok
}

// OnSettled is for middleware of a handler. The function gets the outcome and the address of the broker when the broker
// has confirmed it, or else an error: [ErrLeaseLost], or another one with a Reason. The outcome may be another one than
// the handler's: one that the broker refuses is sent again as a failure. The function must not block. If the handler's
// outcome is not sent, since the lease is lost or the job was released meanwhile, it is not called.
//
// False: the context is not that of a handler of a [Worker], and the function is never called.
func OnSettled(ctx context.Context, f func(broker string, outcome *howdahv1.Outcome, err error)) bool {
	h, ok := ctx.Value(handlerKey{}).(handling)
	if ok {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		if h.a.outcome == nil && !h.a.over {
			h.a.onSettled = append(h.a.onSettled, f)
		}
	}
	return ok
}

// BrokerOf is the address of the broker that a handler's job came from, for middleware of handlers. Empty: the context is
// not that of a handler of a [Worker].
func BrokerOf(ctx context.Context) string {
	h, ok := ctx.Value(handlerKey{}).(handling)
	if !ok {
		return ""
	}
	return h.a.broker.name
}

type enqueueKey struct{}

// enqueueing is an enqueue with middleware.
type enqueueing struct {
	functions []onEnqueued
	broker    atomic.Pointer[broker] // The one that was asked last.
}

// watched is the context of an enqueue with middleware.
func (c *Client) watched(ctx context.Context) context.Context {
	if len(c.cfg.EnqueueMiddleware) == 0 {
		return ctx
	}
	return context.WithValue(ctx, enqueueKey{}, &enqueueing{})
}

func enqueueingOf(ctx context.Context) *enqueueing {
	e, _ := ctx.Value(enqueueKey{}).(*enqueueing)
	return e
}

func (e *enqueueing) at(b *broker) {
	if e != nil {
		e.broker.Store(b)
	}
}

func (e *enqueueing) ended(answers []*howdahv1.EnqueuedJob, err error) {
	if e == nil {
		return
	}
	name := ""
	if b := e.broker.Load(); b != nil {
		name = b.name
	}
	for _, f := range e.functions {
		f(name, answers, err)
	}
}

type handlerKey struct{}

// handling is an attempt whose handler has middleware.
type handling struct {
	s *session
	a *attempt
}

// noteSettled is called with the lock: the functions run without it.
func (s *session) noteSettled(a *attempt, err error) {
	name, outcome := s.broker.name, a.outcome
	for _, f := range a.onSettled {
		s.settledNow = append(s.settledNow, func() { f(name, outcome, err) })
	}
}

// tellSettled is called without the lock.
func (s *session) tellSettled() {
	s.mu.Lock()
	now := s.settledNow
	s.settledNow = nil
	s.mu.Unlock()
	for _, f := range now {
		f()
	}
}
