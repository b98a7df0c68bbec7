package howdah

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"howdah.dev/go/howdahv1"
)

// WorkerConfig has the settings of a [Worker].
type WorkerConfig struct {
	// Number of concurrent handlers, over all task types. [Worker.Handle] can set a lower number for one type. Default: 16.
	//
	// It is also the window of each type, so a worker of several types may receive more jobs than it has slots. A job that
	// has waited for a slot for a second is released for another worker, and the windows shrink to the free slots for a
	// while.
	Concurrency int
	// Maximum bytes of payloads and headers of each task type that the worker holds at once. A larger job is never sent.
	// Default: 64 MiB.
	WindowBytes int64
	// The largest message accepted, in bytes; larger jobs go to other workers. Default: the client's limit.
	MaxMessageBytes int
	// Functions that wrap each handler. The first one is the outermost.
	Middleware []func(Handler) Handler
	// Labels for operators, such as host or version. At most 15, of 200 bytes.
	Labels map[string]string
	// Time that a stop waits for handlers. Then the contexts of handlers end, and a second later the jobs of handlers
	// that still run are released. Default: 30 s.
	StopTimeout time.Duration
	// Silence after which the broker counts the worker as lost: 10 s to 1 h. The worker answers the broker's heartbeat,
	// also while handlers run. Default: the broker's setting, 60 s.
	Liveness time.Duration
}

// Worker runs jobs over one stream to one broker. When the stream breaks, it resumes at another broker.
type Worker struct{ s *session }

// NewWorker makes a worker. Add handlers with [Worker.Handle], then run it once. [Worker.Run] returns an error if a number of
// the configuration is negative.
func (c *Client) NewWorker(cfg WorkerConfig) *Worker {
	invalidConfig := cmp.Or(
		checkNotNegative("Concurrency", cfg.Concurrency), checkNotNegative("WindowBytes", cfg.WindowBytes),
		checkNotNegative("MaxMessageBytes", cfg.MaxMessageBytes), checkNotNegative("StopTimeout", cfg.StopTimeout),
		checkNotNegative("Liveness", cfg.Liveness),
	)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 16)
	cfg.MaxMessageBytes = cmp.Or(cfg.MaxMessageBytes, c.cfg.MaxMessageBytes)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, 30*time.Second)
	return &Worker{&session{
		c: c, cfg: cfg, log: c.cfg.Logger, wake: make(chan struct{}, 1), stream: &streamState{},
		invalid: invalidConfig, slots: make(chan struct{}, max(0, cfg.Concurrency)), types: map[string]*typeSlots{}, held: map[lease]*attempt{},
		unary: unarySettles{maxBytes: maxUnaryBytes},
	}}
}

// Handle sets the handler of a task type, and optionally the number of its concurrent handlers, which is at most the
// worker's. 0: the worker's. Call it before [Worker.Run], which returns an error if the handler is nil, the number is negative,
// or the task type has two handlers.
func (w *Worker) Handle(taskType string, handler Handler, concurrency ...int) {
	slots := w.s.cfg.Concurrency
	if len(concurrency) > 0 {
		slots = min(slots, cmp.Or(concurrency[0], slots))
	}
	var err error
	switch {
	case handler == nil:
		err = invalid("handler", "the handler of task type %q is nil", taskType)
	case w.s.types[taskType] != nil:
		err = invalid("taskType", "task type %q has two handlers: call Handle once for each type", taskType)
	case len(concurrency) > 0 && concurrency[0] < 0:
		err = invalid("concurrency", "the concurrency of task type %q is %d: it must not be negative (0: the worker's)",
			taskType, concurrency[0])
	}
	if err != nil {
		w.s.invalid = cmp.Or(w.s.invalid, err)
		return
	}
	w.s.types[taskType] = &typeSlots{handler: wrap(w.s.cfg.Middleware, handler), slots: make(chan struct{}, max(0, slots))}
}

// Run runs jobs until the context ends. Then it stops: it takes no more jobs, waits for the handlers (see StopTimeout)
// and for the broker's confirmations, and returns. The contexts of handlers have the values of ctx, but do not end with
// it.
//
// Run keeps retrying while no broker answers. It returns an error if the broker refuses the worker, or if a handler or a
// setting of the worker is invalid. It also returns an error if handlers still run or outcomes are unconfirmed after a stop;
// their jobs may run again.
func (w *Worker) Run(ctx context.Context) error {
	s := w.s
	if err := cmp.Or(s.invalid, checkText(s.subscribe())); err != nil {
		return err
	} else if len(s.types) == 0 {
		return &Error{Code: codes.FailedPrecondition, Message: "the worker has no handlers: call Handle before Run"}
	}
	s.baseCtx = context.WithoutCancel(ctx)
	s.ctx, s.end = context.WithCancel(s.baseCtx)
	s.handlerCtx, s.cancelHandlers = context.WithCancelCause(s.baseCtx)
	defer s.close()
	defer context.AfterFunc(ctx, s.stop)()
	var retryBackoff backoff
	for at := s.c.current.Load(); ; at++ {
		at %= int64(len(s.c.brokers))
		b := s.c.brokers[at]
		err := s.c.link(s.ctx, b, s.serve)
		wait := time.Until(s.stream.reconnectAt)
		switch {
		case s.ctx.Err() != nil:
			return s.result()
		case err == nil || !s.stream.reconnectAt.IsZero() && errors.Is(err, errEnded):
			// The broker has asked the worker to reconnect, so the next stream opens at reconnectAt, without a backoff.
		case isRefusal(err) && (s.id == "" || s.isDenied(err)):
			s.log.Error("howdah: the broker refuses this worker", "error", err)
			s.giveUp()
			return err
		default:
			if s.stream.proven {
				// The state of a stream remains until the next one opens: later failures to connect must not reset the backoff.
				retryBackoff, s.stream.proven = backoff{}, false
			}
			wait = retryBackoff.next()
			s.log.Warn("howdah: the stream to the broker broke; reconnecting", "broker", b.name, "error", err, "wait", wait)
			s.c.switchFrom(at)
		}
		sleep(s.ctx, wait)
	}
}

// RunUntilSignal is like [Worker.Run], and also stops at SIGTERM or SIGINT. A second signal ends the process at once.
func (w *Worker) RunUntilSignal(ctx context.Context) error {
	ctx, restore := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer context.AfterFunc(ctx, restore)()
	defer restore()
	return w.Run(ctx)
}

// serve subscribes, and serves the stream until it ends or the worker leaves it.
func (s *session) serve(l *link) error {
	stream, err := howdahv1.NewWorkerServiceClient(l.conn).Work(l.ctx, grpc.MaxCallRecvMsgSize(s.cfg.MaxMessageBytes))
	if err != nil {
		return err
	}
	s.stream = &streamState{settleTimer: time.AfterFunc(settleTimeout, func() { l.end(errSilent) })}
	s.stream.settleTimer.Stop()
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
	defer s.streamEnded()
	// The worker ends the stream after three of the broker's ping intervals without a message.
	silence := 3 * cmp.Or(welcome.PingInterval.AsDuration(), 10*time.Second)
	l.alarm.Reset(silence)
	return duplex(l, stream, s.wake, s.next, func(message *howdahv1.WorkResponse) {
		l.alarm.Reset(silence)
		s.received(message)
	})
}

// call waits for its slots, runs the handler and returns its outcome. A panic counts as a failure.
func (s *session) call(a *attempt) (outcome *howdahv1.Outcome) {
	job := a.job
	defer func() {
		if p := recover(); p != nil {
			outcome = OutcomeOf(job, nil, &panicError{p, string(debug.Stack()), panicPlace()})
		}
	}()
	select {
	case a.taskType.slots <- struct{}{}:
		defer func() { <-a.taskType.slots }()
	case <-a.ctx.Done():
		return OutcomeOf(job, nil, Release())
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-time.After(slotTimeout): // Another worker may have a free slot.
		s.useExactWindows()
		return OutcomeOf(job, nil, Release())
	case <-a.ctx.Done():
		return OutcomeOf(job, nil, Release())
	}
	result, err := a.taskType.handler(a.ctx, job)
	if err != nil && a.ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(a.ctx))) {
		err = Release() // The handler failed because it was told to stop, so the attempt does not count.
	}
	return OutcomeOf(job, result, err)
}

// logFailure logs a failed attempt: as an error if the job is not retried or out of attempts, otherwise as a warning. Call
// it once for each attempt: when the handler has ended, or when the client replaces its outcome.
func (s *session) logFailure(text string, job *Job, noRetry bool, attributes ...any) {
	level := slog.LevelWarn
	if noRetry || job.Attempt >= job.MaxAttempts {
		level = slog.LevelError
	}
	of := []any{"job", job.Id, "type", job.TaskType, "attempt", job.Attempt}
	s.log.Log(context.Background(), level, "howdah: "+text, append(of, attributes...)...)
}

// panicPlace returns the function that panicked, when it is called by a deferred function.
func panicPlace() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	panicking := false
	for {
		frame, more := frames.Next()
		if panicking && !strings.HasPrefix(frame.Function, "runtime.") {
			return frame.Function
		}
		panicking = panicking || frame.Function == "runtime.gopanic"
		if !more {
			return ""
		}
	}
}

// giveUp ends a worker that the broker has refused. It tells the handlers to stop, and waits for them for at most
// handlerTimeout.
func (s *session) giveUp() {
	s.mu.Lock()
	s.cancelHandlers(ErrLeaseLost)
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.handlers.Wait()
	}()
	select {
	case <-gone:
	case <-time.After(handlerTimeout):
	}
}

func (s *session) close() {
	defer s.runSettledCallbacks()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.held {
		if a.outcome != nil {
			s.queueSettledCallbacks(a, errUnconfirmed)
		}
	}
	s.end()
	s.cancelHandlers(ErrStopping)
}

// result returns the error of [Worker.Run] if handlers still run or outcomes are unconfirmed.
func (s *session) result() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held)+s.running == 0 {
		return nil
	}
	return fmt.Errorf("howdah: stopped with %d handlers running and %d outcomes without confirmation", s.running, len(s.held))
}
