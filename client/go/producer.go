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
	// Maximum number of unanswered requests. Default: 4.
	MaxInFlight int
	// Maximum number of jobs and bytes per request. Jobs of one submission stay together. Default: 1,000 and 4 MiB.
	MaxBatchJobs, MaxBatchBytes int
	// Maximum bytes queued and in flight; beyond it, submitting waits (backpressure). Default: 64 MiB.
	MaxQueuedBytes int64
}

// Producer enqueues over one stream, for any number of goroutines. Jobs that arrive while requests are in flight form
// the next request, so batches grow under load. The producer reconnects, and repeats unanswered requests with the same
// request keys, so that nothing is stored twice. If the broker refuses a job, only the jobs of the same submission fail.
type Producer struct {
	c      *Client
	cfg    ProducerConfig
	budget *semaphore.Weighted
	wake   chan struct{}
	done   chan struct{}
	// Error of the configuration, which each submission returns.
	invalid error

	mu           sync.Mutex
	queue        []*Receipt
	resend       []*request // Requests to resend, which are sent before queued jobs.
	sent         []*request // Unanswered requests of the stream.
	closed       bool
	sequence     uint64
	alarm        *time.Timer
	retryBackoff backoff
}

// request is one request of a producer, with the jobs of one or more submissions. It is repeated unchanged, with its
// request key, until it is answered.
type request struct {
	message  *howdahv1.StreamEnqueueRequest
	receipts []*Receipt
}

// Receipt waits for the answer to one submission.
type Receipt struct {
	jobs      []*howdahv1.NewJob
	cost      int64
	since     time.Time
	done      chan struct{}
	answers   []*howdahv1.EnqueuedJob
	err       error
	callbacks *enqueueCallbacks
}

// Wait waits until the jobs are committed, and returns an answer for each job.
func (r *Receipt) Wait(ctx context.Context) ([]*howdahv1.EnqueuedJob, error) {
	select {
	case <-r.done:
		return r.answers, r.err
	case <-ctx.Done():
		return nil, AsError(ctx.Err())
	}
}

// NewProducer makes a producer. Close it after use. With a negative limit, each submission fails.
func (c *Client) NewProducer(cfg ProducerConfig) *Producer {
	invalidConfig := cmp.Or(
		checkNotNegative("MaxInFlight", cfg.MaxInFlight), checkNotNegative("MaxBatchJobs", cfg.MaxBatchJobs),
		checkNotNegative("MaxBatchBytes", cfg.MaxBatchBytes), checkNotNegative("MaxQueuedBytes", cfg.MaxQueuedBytes),
	)
	cfg.MaxInFlight = cmp.Or(cfg.MaxInFlight, 4)
	cfg.MaxBatchJobs, cfg.MaxBatchBytes = cmp.Or(cfg.MaxBatchJobs, 1000), cmp.Or(cfg.MaxBatchBytes, 4<<20)
	cfg.MaxQueuedBytes = cmp.Or(cfg.MaxQueuedBytes, 64<<20)
	p := &Producer{
		c: c, cfg: cfg, invalid: invalidConfig, budget: semaphore.NewWeighted(cfg.MaxQueuedBytes),
		wake: make(chan struct{}, 1), done: make(chan struct{}), alarm: time.NewTimer(c.answerTimeout()),
	}
	go p.run()
	return p
}

// Enqueue stores a job, and returns when it is committed, like [Client.Enqueue].
func (p *Producer) Enqueue(
	ctx context.Context, taskType string, payload any, options ...Option,
) (*howdahv1.EnqueuedJob, error) {
	return enqueueOne(ctx, p, taskType, payload, options)
}

// EnqueueAll stores jobs atomically, and returns when they are committed.
func (p *Producer) EnqueueAll(ctx context.Context, jobs ...*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
	var enqueue EnqueueFunc = func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		receipt, err := p.submit(ctx, jobs)
		if err != nil {
			return nil, err
		}
		return receipt.Wait(ctx)
	}
	return wrap(p.c.cfg.EnqueueMiddleware, enqueue)(p.c.withCallbacks(ctx), jobs)
}

// Submit queues jobs, which are stored atomically. It waits only while the queue is full (backpressure). Wait on the
// receipt to learn whether the jobs are stored. Enqueue middleware of the client does not see the answers as return
// values; it gets them from [OnEnqueued].
func (p *Producer) Submit(ctx context.Context, jobs ...*howdahv1.NewJob) (receipt *Receipt, err error) {
	var enqueue EnqueueFunc = func(ctx context.Context, jobs []*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
		receipt, err = p.submit(ctx, jobs)
		return nil, err
	}
	_, err = wrap(p.c.cfg.EnqueueMiddleware, enqueue)(p.c.withCallbacks(ctx), jobs)
	return receipt, err
}

func (p *Producer) submit(ctx context.Context, jobs []*howdahv1.NewJob) (*Receipt, error) {
	r := &Receipt{jobs: jobs, since: time.Now(), done: make(chan struct{}), callbacks: callbacksOf(ctx)}
	if len(jobs) == 0 {
		close(r.done)
		r.callbacks.run(nil, nil)
		return r, nil
	}
	// A text that cannot be encoded would also fail the other submissions of its request.
	if err := cmp.Or(p.invalid, checkText(&howdahv1.StreamEnqueueRequest{Jobs: jobs})); err != nil {
		r.callbacks.run(nil, err)
		return nil, err
	}
	for _, job := range jobs {
		r.cost += int64(proto.Size(job)) + 256
	}
	r.cost = min(r.cost, p.cfg.MaxQueuedBytes)
	if err := p.budget.Acquire(ctx, r.cost); err != nil {
		err = AsError(err)
		r.callbacks.run(nil, err)
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.budget.Release(r.cost)
		r.callbacks.run(nil, ErrClosed)
		return nil, ErrClosed
	}
	p.queue = append(p.queue, r)
	notify(p.wake)
	return r, nil
}

// Flush waits until all earlier submissions are answered. Submissions made during a flush wait until it ends.
func (p *Producer) Flush(ctx context.Context) error {
	err := p.budget.Acquire(ctx, p.cfg.MaxQueuedBytes)
	if err == nil {
		p.budget.Release(p.cfg.MaxQueuedBytes)
	}
	return AsError(err)
}

// Close stops accepting jobs, and waits until all submitted jobs are answered. It always returns nil.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	notify(p.wake)
	p.mu.Unlock()
	<-p.done
	return nil
}
