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
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
	// Maximum time of one attempt of a call. A broker that cannot reach Postgres answers within 15 s.
	maxAttemptTime = 16 * time.Second
	// Time in which the broker must end a stream that the client has half-closed.
	closeTimeout = 2 * time.Second
)

var (
	errSilent = &Error{Code: codes.Unavailable, Message: "the broker does not answer"}
	errEnded  = &Error{Code: codes.Unavailable, Message: "the broker closed the stream"}
)

// backoff is an exponential backoff from 50 ms to 5 s. Half of each delay is random (jitter), so that clients do not
// reconnect at the same time.
type backoff struct{ failures uint }

func (b *backoff) next() time.Duration {
	bound := min(minBackoff<<min(b.failures, 10), maxBackoff)
	b.failures++
	return bound/2 + rand.N(bound/2)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// notify sends a signal unless one is pending.
func notify(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// link is a stream with its own connection. Each stream opens a new connection, because an existing one may be broken
// without the client having noticed.
type link struct {
	ctx    context.Context
	end    context.CancelCauseFunc
	broker *broker
	conn   *grpc.ClientConn
	alarm  *time.Timer // Ends the stream with errSilent if it is not reset in time.
}

// link connects to a broker, checks its database, and runs serve. It closes the connection afterwards.
func (c *Client) link(ctx context.Context, b *broker, serve func(*link) error) error {
	conn, err := c.dial(b)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(c.inStore(ctx))
	defer cancel(nil)
	alarm := time.AfterFunc(maxAttemptTime, func() { cancel(errSilent) })
	defer alarm.Stop()
	if err = c.checkDatabase(ctx, b, conn); err == nil {
		err = serve(&link{ctx, cancel, b, conn, alarm})
	}
	if context.Cause(ctx) == errSilent {
		err = errSilent
	}
	return b.withBroker(err)
}

// duplex sends the messages that next returns and passes received messages to receive, until the stream ends. If next
// asks to leave the stream, duplex returns nil. After next has returned no message, duplex calls it again when wake has
// a value.
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
	l.end(cmp.Or(context.Cause(l.ctx), err)) // Makes the receiving goroutine end.
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
			// Half-closes the stream, so that the broker sends its last answers and ends it.
			if stream.CloseSend() == nil {
				select {
				case <-ended:
				case <-time.After(closeTimeout):
				}
			}
			return nil
		case message == nil:
			select {
			case err := <-ended:
				return err
			case <-wake:
			}
		default:
			if err := stream.Send(message); err == io.EOF {
				return <-ended // The stream has ended. Recv returns the broker's status.
			} else if err != nil {
				return err // The message cannot be encoded.
			}
		}
	}
}

// wrap wraps a function in middleware. The first one is the outermost.
func wrap[F any](middleware []func(F) F, f F) F {
	for _, m := range slices.Backward(middleware) {
		f = m(f)
	}
	return f
}
