package howdah

import (
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
	// A broker that cannot reach Postgres answers within 15 s.
	longestTry = 16 * time.Second
	// How long the broker may take to end a stream that we have closed.
	closePatience = 2 * time.Second
)

var (
	errSilent = &Error{Code: codes.Unavailable, Message: "the broker does not answer"}
	errEnded  = &Error{Code: codes.Unavailable, Message: "the broker closed the stream"}
)

// pauses double from 50 ms to 5 s. Half of each is random, so that clients do not come back together.
type pauses struct{ failures uint }

func (p *pauses) next() time.Duration {
	bound := min(firstPause<<min(p.failures, 10), longestPause)
	p.failures++
	return bound/2 + rand.N(bound/2)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// link is for one stream, on a connection of its own: the death of an old one may be noticed late.
type link struct {
	ctx    context.Context
	end    context.CancelCauseFunc
	broker *broker
	conn   *grpc.ClientConn
	alarm  *time.Timer // It ends the stream: the broker is silent.
}

// link serves one stream of a broker.
func (c *Client) link(ctx context.Context, b *broker, serve func(*link) error) error {
	conn, err := c.dial(b)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(c.inStore(ctx))
	defer cancel(nil)
	alarm := time.AfterFunc(longestTry, func() { cancel(errSilent) })
	defer alarm.Stop()
	if err = c.check(ctx, b, conn); err == nil {
		err = serve(&link{ctx, cancel, b, conn, alarm})
	}
	if context.Cause(ctx) == errSilent {
		err = errSilent
	}
	return b.explain(err)
}

// duplex sends and receives until the stream has ended, or until next says that it should be left: then the error is
// nil. A wake-up means that next may have a message.
func duplex[Out, In any](
	l *link, stream grpc.BidiStreamingClient[Out, In], wake <-chan struct{}, next func() (*Out, bool), receive func(*In),
) error {
	ended, gone := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			message, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			receive(message)
		}
	}()
	err := send(stream, ended, wake, next)
	if err == io.EOF {
		err = errEnded
	}
	l.end(cmp.Or(context.Cause(l.ctx), err)) // The reader ends, if it has not.
	<-gone
	return err
}

func send[Out, In any](
	stream grpc.BidiStreamingClient[Out, In], ended <-chan error, wake <-chan struct{}, next func() (*Out, bool),
) error {
	for {
		message, leave := next()
		switch {
		case leave:
			// Half-closed: the broker answers what it has, and ends the stream.
			if stream.CloseSend() == nil {
				select {
				case <-ended:
				case <-time.After(closePatience):
				}
			}
			return nil
		case message == nil:
			select {
			case err := <-ended:
				return err
			case <-wake:
			}
		case stream.Send(message) != nil:
			return <-ended // It says why.
		}
	}
}

// wrapped puts middleware around a function, the first one outermost.
func wrapped[F any](middleware []func(F) F, f F) F {
	for _, wrap := range slices.Backward(middleware) {
		f = wrap(f)
	}
	return f
}
