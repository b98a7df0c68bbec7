package howdah

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"howdah.dev/go/howdahv1"
)

const (
	// After this time without an answer to a Settle the stream is dead.
	longestAnswer = time.Minute
	// How long the broker may take to answer a drain request when nothing is held.
	drainPatience = 5 * time.Second
	// How long handlers may take that were told to stop, and then the broker to confirm that their jobs are released.
	handlerPatience, releasePatience = time.Second, 5 * time.Second
	// How long a stop waits for the next confirmation when no handler runs.
	storePatience = 30 * time.Second
)

// lease is the right to run one attempt of one job.
type lease struct{ id, token int64 }

// attempt is a job that the worker holds, or whose outcome the broker has not confirmed.
type attempt struct {
	job     *Job
	kind    *kind
	ctx     context.Context
	cancel  context.CancelCauseFunc
	over    bool              // The lease is lost and the handler still runs: what it returns is dropped.
	outcome *howdahv1.Outcome // Set: the handler has ended, or the job is released.
	queued  bool              // The outcome is to be sent.
	batch   *int              // How many outcomes of its Settle message are not answered.
	refused bool              // The broker has refused an earlier outcome.
	broker  *broker           // The job came from it.
	// Of middleware; see OnSettled.
	onSettled []onSettled
}

// kind is a task type.
type kind struct {
	handler Handler
	slots   chan struct{} // Full while as many handlers run as may.
}

// flow is the state of one stream.
type flow struct {
	open                  int         // Settle messages
	late                  *time.Timer // It ends the stream: they are not answered.
	maxOutcomes, maxBytes int
	asked, drained        bool      // for a drain; no more jobs come
	leaveAt               time.Time // When to open another stream, after a drain by the broker.
	useful                bool      // It has shown that the broker works.
}

// session is the state of a worker, which outlives its streams.
type session struct {
	c           *Client
	cfg         WorkerConfig
	log         *slog.Logger
	kinds       map[string]*kind
	slots       int             // of all kinds
	wake        chan struct{}   // There may be something to send.
	values, ctx context.Context // ctx is for streams: it ends when the worker has ended.
	end         context.CancelFunc
	handlers    sync.WaitGroup

	mu       sync.Mutex
	jobs     context.Context // For handlers.
	endJobs  context.CancelCauseFunc
	held     map[lease]*attempt
	unsent   []*attempt
	asks     []*ask
	running  int
	id       string
	grace    time.Duration
	flow     *flow
	welcomes int
	broker   *broker // of the last stream
	isOpen   bool    // There is a stream.
	stopping bool
	again    pauses
	patience *time.Timer // When a stop waits no longer for confirmations.
	// Functions of middleware that are to be called.
	settledNow []func()
}

// after runs f with the lock, unless the worker has ended.
func (s *session) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ctx.Err() == nil {
			f()
			s.check()
		}
	})
}

// check is called with the lock after each change.
func (s *session) check() {
	poke(s.wake)
	if s.stopping && len(s.held) == 0 && !s.isOpen {
		s.end()
	}
	if s.stopping && len(s.held) > 0 && s.running == 0 && s.patience == nil {
		s.patience = s.after(storePatience, s.end)
	}
}

// subscribe is the first message of a stream.
func (s *session) subscribe() *howdahv1.Subscribe {
	s.mu.Lock()
	defer s.mu.Unlock()
	labels := map[string]string{"client": "howdah-go/" + Version}
	maps.Copy(labels, s.cfg.Labels)
	size := int32(min(s.cfg.MaxMessageBytes, 1<<30))
	first := &howdahv1.Subscribe{SessionId: s.id, Labels: labels, MaxMessageBytes: size}
	for name, k := range s.kinds {
		if !s.stopping {
			window := &howdahv1.Window{TaskType: name, Jobs: int32(cap(k.slots)), Bytes: s.cfg.WindowBytes}
			first.Windows = append(first.Windows, window)
		}
	}
	// Each job once: of two leases, the one that is worked on.
	tokens := map[int64]int64{}
	for key, a := range s.held {
		if _, known := tokens[key.id]; !a.over && (!known || a.outcome == nil) {
			tokens[key.id] = key.token
		}
	}
	for id, token := range tokens {
		first.Held = append(first.Held, &howdahv1.Lease{Id: id, Token: token})
	}
	return first
}

func (s *session) welcome(b *broker, w *howdahv1.Welcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broker = b
	s.log.Info("howdah: connected", "broker", w.Broker, "kept", len(w.Kept), "lost", len(w.Lost))
	s.id, s.grace, s.isOpen, s.welcomes = w.SessionId, w.SessionGrace.AsDuration(), true, s.welcomes+1
	s.flow.maxOutcomes = cmp.Or(int(w.Limits.GetMaxSettleOutcomes()), 10_000)
	theirs := cmp.Or(int(w.Limits.GetMaxMessageBytes()), s.c.cfg.MaxMessageBytes)
	s.flow.maxBytes = min(theirs, s.c.cfg.MaxMessageBytes) - 1024
	kept := map[lease]bool{}
	for _, l := range w.Kept {
		kept[lease{l.Id, l.Token}] = true
	}
	for _, a := range s.asks {
		a.sent = false
	}
	for key, a := range s.held {
		if a.outcome != nil {
			s.queue(a) // It may have been stored before the stream broke: then the answer is OK again.
		} else if !kept[key] {
			s.lose(a, ErrLeaseLost)
		}
	}
}

// leave: there is no stream now. The broker keeps the leases for the grace time.
func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOpen = false
	last := s.welcomes
	s.after(s.grace, func() {
		if s.welcomes != last {
			return
		}
		s.log.Warn("howdah: no stream within the grace time: the leases may be lost")
		s.endJobs(ErrLeaseLost) // What the handlers return still counts: the broker may have kept the leases.
		s.jobs, s.endJobs = context.WithCancelCause(s.values)
		if s.stopping && s.running == 0 {
			s.end()
		}
	})
	s.check()
}

// stop takes no more jobs.
func (s *session) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	s.after(s.cfg.StopTimeout, func() {
		s.endJobs(ErrStopping)
		s.after(handlerPatience, func() {
			for key, a := range s.held {
				if a.over {
					delete(s.held, key)
				} else if a.outcome == nil {
					s.settle(a, OutcomeOf(a.job, nil, Release()))
				}
			}
			s.after(releasePatience, s.end)
		})
	})
	s.check()
}
