package howdah

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"howdah.dev/go/howdahv1"
)

// streamCalls are the calls of the jobs of a worker: they go over its stream.
type streamCalls struct {
	howdahv1.WorkerServiceClient
	s *session
}

func (c streamCalls) ExtendJobs(
	ctx context.Context, in *howdahv1.ExtendJobsRequest, _ ...grpc.CallOption,
) (*howdahv1.ExtendJobsResponse, error) {
	message := &howdahv1.WorkRequest_Extend{Extend: &howdahv1.Extend{Extensions: in.Extensions}}
	results, err := c.s.ask(ctx, in.Extensions[0].Id, &howdahv1.WorkRequest{Message: message})
	return &howdahv1.ExtendJobsResponse{Results: results}, err
}

func (c streamCalls) ReportProgress(
	ctx context.Context, in *howdahv1.ReportProgressRequest, _ ...grpc.CallOption,
) (*howdahv1.ReportProgressResponse, error) {
	message := &howdahv1.WorkRequest_Progress{Progress: &howdahv1.Progress{Reports: in.Reports}}
	results, err := c.s.ask(ctx, in.Reports[0].Id, &howdahv1.WorkRequest{Message: message})
	return &howdahv1.ReportProgressResponse{Results: results}, err
}

// ask is an extension or a report that is not answered.
type ask struct {
	id      int64
	message *howdahv1.WorkRequest
	sent    bool
	answer  chan []*howdahv1.SettleResult
}

func (s *session) ask(ctx context.Context, id int64, message *howdahv1.WorkRequest) ([]*howdahv1.SettleResult, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.cfg.RequestTimeout)
	defer cancel()
	a := &ask{id: id, message: message, answer: make(chan []*howdahv1.SettleResult, 1)}
	s.mu.Lock()
	s.asks = append(s.asks, a)
	poke(s.wake)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asks = slices.DeleteFunc(s.asks, func(other *ask) bool { return other == a })
	}()
	select {
	case results := <-a.answer:
		return results, nil
	case <-s.ctx.Done():
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, AsError(ctx.Err())
	}
}

// nextAsk is an extension or a report to send. Those of one job go one after the other.
func (s *session) nextAsk() *howdahv1.WorkRequest {
	for i, a := range s.asks {
		if !slices.ContainsFunc(s.asks[:i], func(other *ask) bool { return other.id == a.id }) && !a.sent {
			a.sent = true
			return a.message
		}
	}
	return nil
}

// answered handles the broker's answer to an extension or a report.
func (s *session) answered(results []*howdahv1.SettleResult) {
	for _, result := range results {
		at := slices.IndexFunc(s.asks, func(a *ask) bool { return a.sent && a.id == result.Id })
		if at < 0 {
			continue
		}
		a := s.asks[at]
		if result.Status == howdahv1.SettleStatus_SETTLE_STATUS_UNAVAILABLE {
			s.after(s.again.next(), func() { a.sent = false })
			continue
		}
		a.answer <- []*howdahv1.SettleResult{result}
		s.asks = slices.Delete(s.asks, at, at+1)
	}
}
