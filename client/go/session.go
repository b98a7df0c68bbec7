package howdah

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"howdah.dev/go/howdahv1"
)

const (
	// Timeout of a Settle, after which its stream counts as dead.
	settleTimeout = time.Minute
	// Time that a stopping worker waits for the broker's answer to its drain request.
	drainTimeout = 5 * time.Second
	// Time that handlers have to return after a stop has ended their contexts. Then their jobs are released, and the
	// broker has releaseTimeout to confirm the releases.
	handlerTimeout, releaseTimeout = time.Second, 5 * time.Second
	// Maximum time that a job waits although its task type has a free slot, because other types use all slots of the
	// worker. Then the job is released.
	slotTimeout = time.Second
	// Time after the last such release for which the windows are exact.
	exactTime = 30 * time.Second
	// Time that a stop waits for the broker's next confirmation of an outcome, once no handler runs.
	confirmTimeout = 30 * time.Second
)

// lease identifies the right to run one attempt of one job: job id and fencing token.
type lease struct{ id, token int64 }

// attempt is a delivered job from its arrival until the broker has confirmed its outcome.
type attempt struct {
	job       *Job
	taskType  *typeSlots
	ctx       context.Context
	cancel    context.CancelCauseFunc
	inWindow  bool              // The job counts in typeSlots.held.
	leaseLost bool              // The lease is lost and the handler still runs; its outcome is dropped.
	outcome   *howdahv1.Outcome // Set when the handler has ended or the job is released.
	queued    bool              // The outcome is in session.unsent.
	batch     *int              // Number of unanswered outcomes of its Settle message; nil: not sent on this stream.
	refused   bool              // The broker has refused the handler's outcome, and outcome is the nack that replaces it.
	unary     bool              // The outcome is sent by SettleJobs.
	broker    *broker           // The broker that sent the job.
	// Functions that handler middleware has passed to OnSettled.
	onSettled []onSettled
}

// typeSlots is a task type with its handler and its slots.
type typeSlots struct {
	handler Handler
	slots   chan struct{} // Semaphore of the concurrent handlers.
	window  int32         // Window that was sent last on the stream.
	held    int           // Number of jobs that run or wait for a slot and whose lease is not lost.
}

// streamState is the state of one stream.
type streamState struct {
	openSettles             int         // Number of unanswered Settle messages.
	settleTimer             *time.Timer // Ends the stream if Settle messages stay unanswered.
	maxOutcomes, maxBytes   int
	drainRequested, drained bool      // A drain was requested; no more jobs will come.
	pinged                  bool      // The broker has sent a Ping, and the Pong is not sent yet.
	reconnectAt             time.Time // When to open another stream; set when the broker drains this one.
	proven                  bool      // The stream has shown that the broker works.
}

// session is the state of a worker, which outlives its streams.
type session struct {
	c            *Client
	cfg          WorkerConfig
	log          *slog.Logger
	invalid      error // Error of the configuration or of a handler, which Run returns.
	types        map[string]*typeSlots
	slots        chan struct{}   // Semaphore of the concurrent handlers of all task types.
	wake         chan struct{}   // Signals that the state has changed, so that next may return a message.
	baseCtx, ctx context.Context // baseCtx: the caller's, without cancellation. ctx: for streams; ends with the worker.
	end          context.CancelFunc
	handlers     sync.WaitGroup

	mu             sync.Mutex
	handlerCtx     context.Context // Parent context of handlers.
	cancelHandlers context.CancelCauseFunc
	held           map[lease]*attempt
	unsent         []*attempt
	leaseRequests  []*leaseRequest
	oneByOne       bool // Extensions and reports are sent one by one, because a stream broke with many unanswered bytes.
	unary          unarySettles
	running        int
	// Whether the windows have only the jobs that the worker holds and the free slots. Otherwise the window of a type may
	// be as large as all slots. Jobs that find no free slot wait, which saves messages while handlers are short.
	exact        bool
	exactTimer   *time.Timer // Ends exact.
	id           string
	grace        time.Duration
	stream       *streamState
	welcomes     int
	broker       *broker // Broker of the last stream.
	isOpen       bool    // A stream is open.
	stopping     bool
	retryBackoff backoff
	confirmTimer *time.Timer // Ends the worker when a stop has waited too long for a confirmation.
	// OnSettled functions of middleware, which runSettledCallbacks calls without the lock.
	settledCallbacks []func()
}

// after calls f, with the session's lock held, when d has passed. It does nothing if the worker has ended by then.
func (s *session) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ctx.Err() == nil {
			f()
			s.stateChanged()
		}
	})
}

// stateChanged wakes the sender, and ends a stopping worker when all jobs are settled. Call it after each change of the
// session's state, with the lock held.
func (s *session) stateChanged() {
	notify(s.wake)
	if s.stopping && len(s.held) == 0 && !s.isOpen {
		s.end()
	}
	if s.stopping && len(s.held) > 0 && s.running == 0 && s.confirmTimer == nil {
		s.confirmTimer = s.after(confirmTimeout, s.end)
	}
}

// subscribe returns the Subscribe message, the first message of a stream.
func (s *session) subscribe() *howdahv1.Subscribe {
	s.mu.Lock()
	defer s.mu.Unlock()
	labels := map[string]string{"client": "howdah-go/" + Version}
	maps.Copy(labels, s.cfg.Labels)
	size := int32(min(s.cfg.MaxMessageBytes, 1<<30))
	first := &howdahv1.Subscribe{SessionId: s.id, Labels: labels, MaxMessageBytes: size}
	if s.cfg.Liveness > 0 {
		first.Liveness = durationpb.New(s.cfg.Liveness)
	}
	for name, t := range s.types {
		if !s.stopping {
			first.Windows = append(first.Windows, s.window(name, t))
		}
	}
	// A Subscribe may name a job only once. If the worker has two leases of a job, it names the lease whose handler
	// runs.
	tokens := map[int64]int64{}
	for key, a := range s.held {
		if _, known := tokens[key.id]; !a.leaseLost && (!known || a.outcome == nil) {
			tokens[key.id] = key.token
		}
	}
	for id, token := range tokens {
		first.Held = append(first.Held, &howdahv1.Lease{Id: id, Token: token})
	}
	return first
}

// useExactWindows makes the windows exact, because a job has waited for a slot for too long.
func (s *session) useExactWindows() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exact = true
	if s.exactTimer != nil {
		s.exactTimer.Stop()
	}
	s.exactTimer = s.after(exactTime, func() { s.exact = false })
}

// window returns the window of a task type to send.
func (s *session) window(name string, t *typeSlots) *howdahv1.Window {
	t.window = s.windowJobs(t)
	return &howdahv1.Window{TaskType: name, Jobs: t.window, Bytes: s.cfg.WindowBytes}
}

func (s *session) windowJobs(t *typeSlots) int32 {
	if !s.exact {
		return int32(min(cap(t.slots), math.MaxInt32))
	}
	return int32(min(cap(t.slots), t.held+max(0, cap(s.slots)-s.running), math.MaxInt32))
}

// nextWindow returns a window that has changed since it was sent, or nil.
func (s *session) nextWindow() *howdahv1.WorkRequest {
	if s.stopping || s.stream.drained {
		return nil
	}
	for name, t := range s.types {
		if t.window != s.windowJobs(t) {
			return &howdahv1.WorkRequest{Message: &howdahv1.WorkRequest_Window{Window: s.window(name, t)}}
		}
	}
	return nil
}

func (s *session) welcome(b *broker, w *howdahv1.Welcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broker = b
	s.log.Info("howdah: connected", "broker", w.Broker, "kept", len(w.Kept), "lost", len(w.Lost))
	s.id, s.grace, s.isOpen, s.welcomes = w.SessionId, w.SessionGrace.AsDuration(), true, s.welcomes+1
	s.stream.maxOutcomes = cmp.Or(int(w.Limits.GetMaxSettleOutcomes()), 10_000)
	brokerMax := cmp.Or(int(w.Limits.GetMaxMessageBytes()), s.c.cfg.MaxMessageBytes)
	s.stream.maxBytes = min(brokerMax, s.c.cfg.MaxMessageBytes) - 1024
	kept := map[lease]bool{}
	for _, l := range w.Kept {
		kept[lease{l.Id, l.Token}] = true
	}
	s.requeueLeaseRequests()
	unanswered := 0
	for _, a := range s.held {
		if a.batch != nil {
			unanswered += proto.Size(a.outcome)
		}
	}
	for key, a := range s.held {
		if a.batch != nil && unanswered > unaryThreshold {
			a.batch, a.unary = nil, true
			s.unary.waiting = append(s.unary.waiting, a)
		} else if a.outcome != nil {
			s.queue(a) // If the broker stored the outcome before the stream broke, it answers OK again.
		} else if !kept[key] {
			s.lose(a, ErrLeaseLost)
		}
	}
	s.startUnarySettle()
}

// streamEnded records that the stream has ended. The broker keeps the leases for the grace time.
func (s *session) streamEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOpen = false
	last := s.welcomes
	s.after(s.grace, func() {
		if s.welcomes != last {
			return
		}
		s.log.Warn("howdah: could not reconnect to a broker within the session's grace time: the leases may be lost")
		s.cancelHandlers(ErrLeaseLost) // Outcomes of the handlers still count, because the broker may have kept the leases.
		s.handlerCtx, s.cancelHandlers = context.WithCancelCause(s.baseCtx)
		if s.stopping && s.running == 0 {
			s.end()
		}
	})
	s.stateChanged()
}

// stop begins a stop: the worker takes no more jobs. After StopTimeout, the contexts of handlers end; a second later,
// the remaining jobs are released.
func (s *session) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	s.after(s.cfg.StopTimeout, func() {
		s.cancelHandlers(ErrStopping)
		s.after(handlerTimeout, func() {
			for key, a := range s.held {
				if a.leaseLost {
					delete(s.held, key)
				} else if a.outcome == nil {
					s.settle(a, OutcomeOf(a.job, nil, Release()))
				}
			}
			s.after(releaseTimeout, s.end)
		})
	})
	s.stateChanged()
}
