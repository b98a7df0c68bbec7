package howdah

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"howdah.dev/go/howdahv1"
)

// WorkerConfig has the settings of a [Worker].
type WorkerConfig struct {
	// How many handlers of each task type run at once, unless [Worker.Handle] gets another number; also how many jobs of
	// the type the worker holds (its window), so that no job waits here while another worker is idle. Default: 16.
	Concurrency int
	// How many bytes of payloads and headers of each task type the worker holds at once. A larger job is never sent.
	// Default: 64 MiB.
	WindowBytes int64
	// The largest message accepted; larger jobs are left to other workers. Default: that of the client.
	MaxMessageBytes int
	// Wraps each handler, the first one outermost.
	Middleware []func(Handler) Handler
	// For people, such as host or version. At most 15, of 200 bytes.
	Labels map[string]string
	// How long a stop waits for handlers. Then their contexts end; a second later, the jobs of those that still run are
	// released. Default: 30 s.
	StopTimeout time.Duration
}

// Worker runs jobs over one stream to one broker, and goes on at another one when that breaks.
type Worker struct{ s *session }

// NewWorker makes a worker. Add handlers, then run it once.
func (c *Client) NewWorker(cfg WorkerConfig) *Worker {
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 16)
	cfg.MaxMessageBytes = cmp.Or(cfg.MaxMessageBytes, c.cfg.MaxMessageBytes)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, 30*time.Second)
	return &Worker{&session{
		c: c, cfg: cfg, log: c.cfg.Logger, wake: make(chan struct{}, 1), flow: &flow{},
		kinds: map[string]*kind{}, held: map[lease]*attempt{},
	}}
}

// Handle lets the handler run the jobs of a task type. Call it before Run.
func (w *Worker) Handle(taskType string, handler Handler, concurrency ...int) {
	slots := w.s.cfg.Concurrency
	if len(concurrency) > 0 {
		slots = concurrency[0]
	}
	w.s.kinds[taskType] = &kind{wrapped(w.s.cfg.Middleware, handler), make(chan struct{}, slots)}
}

// Run runs jobs until the context ends. It then stops: it takes no more jobs, waits for the handlers (see
// StopTimeout) and for the broker's confirmations, and returns. The contexts of handlers have the values of this one,
// and end later.
//
// While no broker answers, it keeps trying. It returns an error if the broker refuses the worker, or if it could not
// stop cleanly: then handlers still run, or outcomes are not confirmed, and their jobs may run again.
func (w *Worker) Run(ctx context.Context) error {
	s := w.s
	s.values = context.WithoutCancel(ctx)
	s.ctx, s.end = context.WithCancel(s.values)
	s.jobs, s.endJobs = context.WithCancelCause(s.values)
	for _, k := range s.kinds {
		s.slots += cap(k.slots)
	}
	defer s.close()
	defer context.AfterFunc(ctx, s.stop)()
	var pause pauses
	for at := s.c.current.Load(); ; at++ {
		at %= int64(len(s.c.brokers))
		b := s.c.brokers[at]
		err := s.c.link(s.ctx, b, s.serve)
		wait := time.Until(s.flow.leaveAt)
		switch {
		case s.ctx.Err() != nil:
			return s.result()
		case err == nil || !s.flow.leaveAt.IsZero() && errors.Is(err, errEnded):
			// The broker wants us elsewhere.
		case isRefusal(err) && (s.id == "" || s.isDenied(err)):
			s.log.Error("howdah: the broker refuses this worker", "error", err)
			s.giveUp()
			return err
		default:
			if s.flow.useful {
				pause = pauses{}
			}
			wait = pause.next()
			s.log.Warn("howdah: the stream to the broker broke; reconnecting", "broker", b.name, "error", err, "wait", wait)
			s.c.moveOn(at)
		}
		sleep(s.ctx, wait)
	}
}

// RunUntilSignal is Run until SIGTERM or SIGINT. A second signal ends the process at once.
func (w *Worker) RunUntilSignal(ctx context.Context) error {
	ctx, restore := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer context.AfterFunc(ctx, restore)()
	defer restore()
	return w.Run(ctx)
}

// serve subscribes, and serves a stream until it ends or should be left.
func (s *session) serve(l *link) error {
	stream, err := howdahv1.NewWorkerServiceClient(l.conn).Work(l.ctx, grpc.MaxCallRecvMsgSize(s.cfg.MaxMessageBytes))
	if err != nil {
		return err
	}
	s.flow = &flow{late: time.AfterFunc(longestAnswer, func() { l.end(errSilent) })}
	s.flow.late.Stop()
	first := &howdahv1.WorkRequest_Subscribe{Subscribe: s.subscribe()}
	if err := stream.Send(&howdahv1.WorkRequest{Message: first}); err != nil && err != io.EOF {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	welcome := answer.GetWelcome()
	if welcome == nil {
		return &Error{Code: codes.Unavailable, Message: "the broker's first message was not a welcome"}
	}
	s.welcome(l.broker, welcome)
	defer s.leave()
	// Three pings without one are silence.
	silence := 3 * cmp.Or(welcome.PingInterval.AsDuration(), 10*time.Second)
	l.alarm.Reset(silence)
	return duplex(l, stream, s.wake, s.next, func(message *howdahv1.WorkResponse) {
		l.alarm.Reset(silence)
		s.received(message)
	})
}

// call runs a handler. A panic is a failure.
func (s *session) call(a *attempt) (outcome *howdahv1.Outcome) {
	job := a.job
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("howdah: the handler panicked", "job", job.Id, "panic", p, "stack", string(debug.Stack()))
			outcome = OutcomeOf(job, nil, fmt.Errorf("the handler panicked: %v", p))
		}
	}()
	select {
	case a.kind.slots <- struct{}{}:
		defer func() { <-a.kind.slots }()
	case <-a.ctx.Done():
		return OutcomeOf(job, nil, Release())
	}
	result, err := a.kind.handler(a.ctx, job)
	if err != nil && context.Cause(a.ctx) == ErrStopping && errors.Is(err, context.Canceled) {
		err = Release() // It gave up because it was told to: the attempt does not count.
	}
	if outcome = OutcomeOf(job, result, err); outcome.GetNack() != nil {
		s.log.Warn("howdah: the handler failed", "job", job.Id, "type", job.TaskType, "attempt", job.Attempt, "error", err)
	}
	return outcome
}

// giveUp ends the handlers of a worker that the broker refuses.
func (s *session) giveUp() {
	s.mu.Lock()
	s.endJobs(ErrLeaseLost)
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.handlers.Wait()
	}()
	select {
	case <-gone:
	case <-time.After(handlerPatience):
	}
}

func (s *session) close() {
	defer s.tellSettled()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.held {
		if a.outcome != nil {
			s.noteSettled(a, errUnconfirmed)
		}
	}
	s.end()
	s.endJobs(ErrStopping)
}

// result says whether the worker has stopped cleanly.
func (s *session) result() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held)+s.running == 0 {
		return nil
	}
	return fmt.Errorf("howdah: stopped with %d handlers running and %d outcomes without confirmation", s.running, len(s.held))
}
