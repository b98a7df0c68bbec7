package howdah

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"

	"howdah.dev/go/howdahv1"
)

// ProducerConfig has the limits of a [Producer].
type ProducerConfig struct {
	// The most requests that are sent and not answered. Default: 4.
	MaxInFlight int
	// The most jobs and bytes of a request. What was submitted together stays together. Default: 1,000 and 4 MiB.
	MaxBatchJobs, MaxBatchBytes int
	// The most bytes gathered and in flight; then submitting waits. Default: 64 MiB.
	MaxGatheredBytes int64
}

// Producer enqueues over one stream, for any number of goroutines. Jobs that gather while requests are in flight form
// the next request. It reconnects, and repeats what was not answered under the same request keys, so that nothing is
// stored twice. If the broker refuses jobs, only those that were submitted with them fail.
type Producer struct {
	c    *Client
	cfg  ProducerConfig
	room *semaphore.Weighted
	wake chan struct{}
	done chan struct{}

	mu       sync.Mutex
	queue    []*Receipt
	again    []*request // To be sent again, before the queue.
	sent     []*request // Not answered.
	closed   bool
	sequence uint64
	alarm    *time.Timer
	pause    pauses
}

// request is one of the stream. It is repeated unchanged until it is answered.
type request struct {
	message  *howdahv1.StreamEnqueueRequest
	receipts []*Receipt
}

// Receipt is for jobs that were submitted together.
type Receipt struct {
	jobs    []*howdahv1.NewJob
	cost    int64
	since   time.Time
	done    chan struct{}
	answers []*howdahv1.EnqueuedJob
	err     error
	watched *enqueueing
}

// Wait returns when the jobs are committed, with an answer for each.
func (r *Receipt) Wait(ctx context.Context) ([]*howdahv1.EnqueuedJob, error) {
	select {
	case <-r.done:
		return r.answers, r.err
	case <-ctx.Done():
		return nil, AsError(ctx.Err())
	}
}

// NewProducer makes a producer. Close it at the end.
func (c *Client) NewProducer(cfg ProducerConfig) *Producer {
	cfg.MaxInFlight = cmp.Or(cfg.MaxInFlight, 4)
	cfg.MaxBatchJobs, cfg.MaxBatchBytes = cmp.Or(cfg.MaxBatchJobs, 1000), cmp.Or(cfg.MaxBatchBytes, 4<<20)
	cfg.MaxGatheredBytes = cmp.Or(cfg.MaxGatheredBytes, 64<<20)
	p := &Producer{
		c: c, cfg: cfg, room: semaphore.NewWeighted(cfg.MaxGatheredBytes),
		wake: make(chan struct{}, 1), done: make(chan struct{}), alarm: time.NewTimer(longestTry),
	}
	go p.run()
	return p
}

// Enqueue stores a job, as [Client.Enqueue] does.
func (p *Producer) Enqueue(
	ctx context.Context, taskType string, payload any, options ...Option,
) (*howdahv1.EnqueuedJob, error) {
	return one(ctx, p, taskType, payload, options)
}

// EnqueueAll stores jobs: all of them or none.
func (p *Producer) EnqueueAll(ctx context.Context, jobs ...*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
	var enqueue EnqueueFunc = func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		receipt, err := p.submit(ctx, jobs)
		if err != nil {
			return nil, err
		}
		return receipt.Wait(ctx)
	}
	return wrapped(p.c.cfg.EnqueueMiddleware, enqueue)(p.c.watched(ctx), jobs)
}

// Submit returns when the jobs are gathered, and waits while too much is. Only the receipt tells whether they are
// stored. Middleware of the client sees no answers, but for [OnEnqueued].
func (p *Producer) Submit(ctx context.Context, jobs ...*howdahv1.NewJob) (receipt *Receipt, err error) {
	var enqueue EnqueueFunc = func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		receipt, err = p.submit(ctx, jobs)
		return nil, err
	}
	_, err = wrapped(p.c.cfg.EnqueueMiddleware, enqueue)(p.c.watched(ctx), jobs)
	return receipt, err
}

func (p *Producer) submit(ctx context.Context, jobs []*howdahv1.NewJob) (*Receipt, error) {
	r := &Receipt{jobs: jobs, since: time.Now(), done: make(chan struct{}), watched: enqueueingOf(ctx)}
	if len(jobs) == 0 {
		close(r.done)
		r.watched.ended(nil, nil)
		return r, nil
	}
	for _, job := range jobs {
		r.cost += int64(proto.Size(job)) + 256
	}
	r.cost = min(r.cost, p.cfg.MaxGatheredBytes)
	if err := p.room.Acquire(ctx, r.cost); err != nil {
		err = AsError(err)
		r.watched.ended(nil, err)
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.room.Release(r.cost)
		r.watched.ended(nil, ErrClosed)
		return nil, ErrClosed
	}
	p.queue = append(p.queue, r)
	poke(p.wake)
	return r, nil
}

// Flush waits until everything that was submitted before is answered.
func (p *Producer) Flush(ctx context.Context) error {
	err := p.room.Acquire(ctx, p.cfg.MaxGatheredBytes)
	if err == nil {
		p.room.Release(p.cfg.MaxGatheredBytes)
	}
	return AsError(err)
}

// Close takes no more jobs, and returns when all are answered.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	poke(p.wake)
	p.mu.Unlock()
	<-p.done
	return nil
}
