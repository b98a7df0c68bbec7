package howdah

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"howdah.dev/go/howdahv1"
)

// This file lets middleware learn results that arrive after an enqueue or a handler has returned. The package otelhowdah
// uses it.

type (
	onEnqueued = func(broker string, answers []*howdahv1.EnqueuedJob, err error)
	onSettled  = func(broker string, outcome *howdahv1.Outcome, err error)
)

var errUnconfirmed = &Error{
	Code: codes.Canceled, Reason: "UNCONFIRMED", Message: "the worker ended before the broker confirmed the outcome",
}

// OnEnqueued registers a function of enqueue middleware. The function gets the result of the enqueue: the broker's
// answers or the error. With [Producer.Submit], the result arrives after the middleware has returned. The function also
// gets the address of the broker that was called last, or an empty address. It must not block. It is not called if
// another middleware refuses the jobs.
//
// OnEnqueued returns false, and never calls the function, if ctx does not belong to an enqueue of a [Client] or a
// [Producer].
func OnEnqueued(ctx context.Context, f func(broker string, answers []*howdahv1.EnqueuedJob, err error)) bool {
	e, ok := ctx.Value(enqueueKey{}).(*enqueueCallbacks)
	if ok {
		e.functions = append(e.functions, f)
	}
	return ok
}

// OnSettled registers a function of handler middleware. When the broker has confirmed the outcome, the function gets the
// outcome and the address of the broker. Otherwise it gets an error: [ErrLeaseLost], or another error with a Reason. The
// outcome may differ from the handler's, because an outcome that the broker refuses is replaced by a failure. The
// function must not block. It is not called if the handler's outcome is not sent, because the lease is lost or the job
// was released in the meantime.
//
// OnSettled returns false, and never calls the function, if ctx does not belong to a handler of a [Worker].
func OnSettled(ctx context.Context, f func(broker string, outcome *howdahv1.Outcome, err error)) bool {
	h, ok := ctx.Value(handlerKey{}).(handling)
	if ok {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		if h.a.outcome == nil && !h.a.leaseLost {
			h.a.onSettled = append(h.a.onSettled, f)
		}
	}
	return ok
}

// BrokerOf returns the address of the broker that sent the job of a handler, for handler middleware. It is empty if ctx
// does not belong to a handler of a [Worker].
func BrokerOf(ctx context.Context) string {
	h, ok := ctx.Value(handlerKey{}).(handling)
	if !ok {
		return ""
	}
	return h.a.broker.name
}

type enqueueKey struct{}

// enqueueCallbacks has the functions that middleware of one enqueue has passed to [OnEnqueued].
type enqueueCallbacks struct {
	functions []onEnqueued
	broker    atomic.Pointer[broker] // The broker that was called last.
}

// withCallbacks returns the context of an enqueue. With middleware, it carries an [enqueueCallbacks].
func (c *Client) withCallbacks(ctx context.Context) context.Context {
	if len(c.cfg.EnqueueMiddleware) == 0 {
		return ctx
	}
	return context.WithValue(ctx, enqueueKey{}, &enqueueCallbacks{})
}

func callbacksOf(ctx context.Context) *enqueueCallbacks {
	e, _ := ctx.Value(enqueueKey{}).(*enqueueCallbacks)
	return e
}

func (e *enqueueCallbacks) setBroker(b *broker) {
	if e != nil {
		e.broker.Store(b)
	}
}

// run calls the functions with the result of the enqueue.
func (e *enqueueCallbacks) run(answers []*howdahv1.EnqueuedJob, err error) {
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

// handling is a context value for middleware around a handler: the attempt that the handler runs, and the worker's
// session.
type handling struct {
	s *session
	a *attempt
}

// queueSettledCallbacks queues the functions that middleware registered with OnSettled for this attempt. The caller
// holds the session's lock; [session.runSettledCallbacks] calls the functions later, without the lock.
func (s *session) queueSettledCallbacks(a *attempt, err error) {
	name, outcome := s.broker.name, a.outcome
	for _, f := range a.onSettled {
		s.settledCallbacks = append(s.settledCallbacks, func() { f(name, outcome, err) })
	}
}

// runSettledCallbacks calls the functions that queueSettledCallbacks has queued. The caller must not hold the session's
// lock.
func (s *session) runSettledCallbacks() {
	s.mu.Lock()
	callbacks := s.settledCallbacks
	s.settledCallbacks = nil
	s.mu.Unlock()
	for _, f := range callbacks {
		f()
	}
}
