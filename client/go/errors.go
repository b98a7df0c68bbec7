package howdah

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is the refusal of a broker, or a connection that broke. Find it with [errors.As].
type Error struct {
	// The gRPC code.
	Code codes.Code
	// A text for people: the field, its value, and what to do.
	Message string
	// The invalid field, such as `jobs[3].task_type`; empty if none is.
	Field string
	// A constant for programs, such as INVALID_FIELD; empty if the error does not come from a broker.
	Reason string
	// How long to wait before trying again, if the broker knows: a backlog is full.
	RetryAfter time.Duration
	// The address of the broker; empty if none was asked.
	Broker string
}

// For [errors.Is]. The last four are causes of the contexts of handlers too: see [context.Cause].
var (
	// ErrNotFound: there is no such job, schedule or token.
	ErrNotFound error = &Error{Code: codes.NotFound}
	// ErrAlreadyExists: the request key was used with other jobs, the job's key is held, or the name is taken.
	ErrAlreadyExists error = &Error{Code: codes.AlreadyExists}
	// ErrBacklogFull: the task type takes no more jobs now; Error.RetryAfter says when to try again.
	ErrBacklogFull error = &Error{Code: codes.ResourceExhausted, Reason: "BACKLOG_FULL"}
	// ErrClosed: the producer or the worker has ended.
	ErrClosed error = &Error{Code: codes.Canceled, Reason: "CLOSED", Message: "it is closed"}
	// ErrLeaseLost: the worker does not hold the job any more; another one may run it.
	ErrLeaseLost error = &Error{Code: codes.FailedPrecondition, Reason: "LEASE_LOST", Message: "the lease of the job is lost"}
	// ErrCancelled: the job was cancelled.
	ErrCancelled error = &Error{Code: codes.Canceled, Reason: "CANCELLED", Message: "the job was cancelled"}
	// ErrTimeout: the deadline of the attempt has passed.
	ErrTimeout error = &Error{Code: codes.DeadlineExceeded, Reason: "TIMEOUT", Message: "the attempt's deadline has passed"}
	// ErrStopping: the worker stops, and has waited long enough for the handler.
	ErrStopping error = &Error{Code: codes.Canceled, Reason: "STOPPING", Message: "the worker is stopping"}
)

// Error is the text for people, with the field and the address.
func (e *Error) Error() string {
	text := e.Message
	if text == "" {
		text = e.Code.String()
	}
	if e.Field != "" && !strings.Contains(text, e.Field) {
		text += " (" + e.Field + ")"
	}
	if e.Reason == "" && e.Broker != "" {
		text = e.Broker + ": " + text
	}
	return "howdah: " + text
}

// Is compares code and reason with those of the target; also with the errors of contexts.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case *Error:
		return t.Code == e.Code && (t.Reason == "" || t.Reason == e.Reason)
	default:
		return target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded ||
			target == context.Canceled && e.Code == codes.Canceled
	}
}

// GRPCStatus makes [status.Code] and [status.FromError] work.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// IsRetryable says whether the same call may succeed a little later. Repeat an enqueue with its request key.
func (e *Error) IsRetryable() bool { return isPassing(e) || e.RetryAfter > 0 }

// AsError converts an error of a stream, or of another stub, into an [*Error]. Nil stays nil.
func AsError(err error) error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	st := status.FromContextError(err)
	if s, ok := status.FromError(err); ok {
		st = s
	}
	own = &Error{Code: st.Code(), Message: st.Message()}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			own.Reason = d.Reason
		case *errdetails.RetryInfo:
			own.RetryAfter = d.RetryDelay.AsDuration()
		case *errdetails.BadRequest:
			if len(d.FieldViolations) > 0 {
				own.Field = d.FieldViolations[0].Field
			}
		}
	}
	return own
}

// hopeless are errors of connections that trying again does not mend.
var hopeless = []struct {
	seen, said string
	code       codes.Code
}{
	{"this port needs TLS", "this port needs TLS: use https://", codes.FailedPrecondition},
	{"does not look like a TLS handshake", "this port does not speak TLS: use http://", codes.FailedPrecondition},
	{"x509: ", "the broker's certificate is not trusted", codes.FailedPrecondition},
	{"client certificate", "the broker refused the client certificate, or wants one", codes.Unauthenticated},
	{"tls: certificate required", "the broker asks for a client certificate, and none was shown", codes.Unauthenticated},
}

// explain converts an error of a call to this broker.
func (b *broker) explain(err error) error {
	var own *Error
	if !errors.As(AsError(err), &own) {
		return nil
	}
	copied := *own // Others may have this error too.
	own = &copied
	own.Broker = b.name
	for _, cause := range hopeless {
		if own.Reason == "" && own.Code == codes.Unavailable && strings.Contains(own.Message, cause.seen) {
			own.Code, own.Message = cause.code, fmt.Sprintf("%s (%s)", cause.said, own.Message)
		}
	}
	return own
}

// isPassing says whether this package tries again. Not after a full backlog: the producer should know.
func isPassing(err error) bool {
	var e *Error
	if !errors.As(err, &e) || e.RetryAfter > 0 {
		return false
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
		return true
	case codes.Internal, codes.Unknown:
		return e.Reason == "" // From the connection, not from a broker.
	}
	return false
}

func isUnauthenticated(err error) bool { return errors.Is(err, &Error{Code: codes.Unauthenticated}) }

// isRefusal says whether a new stream would end the same way.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated,
		codes.Unimplemented:
		return true
	}
	return false
}

// isDenied says whether the broker refuses the credential, and there will be no other one.
func (s *session) isDenied(err error) bool {
	return errors.Is(err, &Error{Code: codes.PermissionDenied}) || isUnauthenticated(err) && s.c.cfg.TokenFile == ""
}
