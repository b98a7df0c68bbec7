package howdah

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"howdah.dev/go/howdahv1"
)

// streamCalls makes the calls of handlers: it sends extensions and progress reports over the worker's stream.
type streamCalls struct {
	howdahv1.WorkerServiceClient
	s *session
}

func (c streamCalls) ExtendJobs(
	ctx context.Context, in *howdahv1.ExtendJobsRequest, _ ...grpc.CallOption,
) (*howdahv1.ExtendJobsResponse, error) {
	message := &howdahv1.WorkRequest_Extend{Extend: &howdahv1.Extend{Extensions: in.Extensions}}
	results, err := c.s.sendLeaseRequest(ctx, in.Extensions[0].Id, &howdahv1.WorkRequest{Message: message})
	return &howdahv1.ExtendJobsResponse{Results: results}, err
}

func (c streamCalls) ReportProgress(
	ctx context.Context, in *howdahv1.ReportProgressRequest, _ ...grpc.CallOption,
) (*howdahv1.ReportProgressResponse, error) {
	message := &howdahv1.WorkRequest_Progress{Progress: &howdahv1.Progress{Reports: in.Reports}}
	results, err := c.s.sendLeaseRequest(ctx, in.Reports[0].Id, &howdahv1.WorkRequest{Message: message})
	return &howdahv1.ReportProgressResponse{Results: results}, err
}

// GetResults is a unary call, because the results may be large, and the stream carries the heartbeat.
func (c streamCalls) GetResults(
	ctx context.Context, in *howdahv1.GetResultsRequest, options ...grpc.CallOption,
) (*howdahv1.GetResultsResponse, error) {
	return howdahv1.NewWorkerServiceClient(c.s.c).GetResults(ctx, in, options...)
}

// leaseRequest is an unanswered extension or progress report.
type leaseRequest struct {
	id      int64
	message *howdahv1.WorkRequest
	sent    bool
	answer  chan []*howdahv1.SettleResult
}

// sendLeaseRequest queues an extension or progress report for the stream, and waits for its answer.
func (s *session) sendLeaseRequest(
	ctx context.Context, id int64, message *howdahv1.WorkRequest,
) ([]*howdahv1.SettleResult, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.cfg.RequestTimeout)
	defer cancel()
	r := &leaseRequest{id: id, message: message, answer: make(chan []*howdahv1.SettleResult, 1)}
	s.mu.Lock()
	s.leaseRequests = append(s.leaseRequests, r)
	notify(s.wake)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leaseRequests = slices.DeleteFunc(s.leaseRequests, func(other *leaseRequest) bool { return other == r })
	}()
	select {
	case results := <-r.answer:
		return results, nil
	case <-s.ctx.Done():
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, AsError(ctx.Err())
	}
}

// nextLeaseRequest returns the next extension or progress report to send, or nil. A second request for the same job
// waits until the first is answered.
func (s *session) nextLeaseRequest() *howdahv1.WorkRequest {
	if s.oneByOne && slices.ContainsFunc(s.leaseRequests, func(r *leaseRequest) bool { return r.sent }) {
		return nil
	}
	for i, r := range s.leaseRequests {
		if !slices.ContainsFunc(s.leaseRequests[:i], func(other *leaseRequest) bool { return other.id == r.id }) && !r.sent {
			r.sent = true
			return r.message
		}
	}
	return nil
}

// requeueLeaseRequests marks the extensions and progress reports that the last stream left unanswered as unsent.
func (s *session) requeueLeaseRequests() {
	bytes := 0
	for _, r := range s.leaseRequests {
		if r.sent {
			bytes += proto.Size(r.message)
		}
		r.sent = false
	}
	s.oneByOne = s.oneByOne && len(s.leaseRequests) > 0 || bytes > maxUnaryBytes
}

// handleLeaseResults handles the broker's answer to extensions or progress reports.
func (s *session) handleLeaseResults(results []*howdahv1.SettleResult) {
	for _, result := range results {
		index := slices.IndexFunc(s.leaseRequests, func(r *leaseRequest) bool { return r.sent && r.id == result.Id })
		if index < 0 {
			continue
		}
		r := s.leaseRequests[index]
		if result.Status == howdahv1.SettleStatus_SETTLE_STATUS_UNAVAILABLE {
			s.after(s.retryBackoff.next(), func() { r.sent = false })
			continue
		}
		r.answer <- []*howdahv1.SettleResult{result}
		s.leaseRequests = slices.Delete(s.leaseRequests, index, index+1)
	}
}
