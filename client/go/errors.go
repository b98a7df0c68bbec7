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

// Error is an error that the broker returned, a value that the client refused, or a broken connection. Get it with
// [errors.As].
type Error struct {
	// The gRPC code.
	Code codes.Code
	// Human-readable message: the field, its value, and what to do.
	Message string
	// Path of the invalid field, such as `jobs[3].task_type`; empty if the error is not about a field.
	Field string
	// Machine-readable reason, such as INVALID_FIELD; REQUEST_TOO_LARGE if a proxy refuses the size of a request; empty
	// for other errors that are not from a broker.
	Reason string
	// Delay before a retry, which the broker sends if a backlog is full or a rate limit is exceeded; otherwise 0.
	RetryAfter time.Duration
	// The address of the broker; empty if no broker was called.
	Broker string
}

// Errors to compare with [errors.Is]. The last four are also causes of a handler's context: see [context.Cause].
var (
	// ErrNotFound means that the object in the request, such as a job or a schedule, does not exist.
	ErrNotFound error = &Error{Code: codes.NotFound}
	// ErrAlreadyExists means that the request key was used with other jobs, another job holds the key, or the name is taken.
	ErrAlreadyExists error = &Error{Code: codes.AlreadyExists}
	// ErrBacklogFull means that the backlog of the task type is full. Error.RetryAfter is the time to wait before a retry.
	ErrBacklogFull error = &Error{Code: codes.ResourceExhausted, Reason: "BACKLOG_FULL"}
	// ErrRequestTooLarge means that a proxy refuses requests of this size. No part of the request has reached a broker.
	ErrRequestTooLarge error = &Error{Code: codes.ResourceExhausted, Reason: "REQUEST_TOO_LARGE"}
	// ErrClosed means that the producer was closed or the worker has ended.
	ErrClosed error = &Error{Code: codes.Canceled, Reason: "CLOSED", Message: "the producer or worker is closed"}
	// ErrLeaseLost means that the worker no longer holds the job; another worker may be running it.
	ErrLeaseLost error = &Error{Code: codes.FailedPrecondition, Reason: "LEASE_LOST", Message: "the lease of the job is lost"}
	// ErrCancelled means that the job was cancelled.
	ErrCancelled error = &Error{Code: codes.Canceled, Reason: "CANCELLED", Message: "the job was cancelled"}
	// ErrTimeout means that the deadline of the attempt has passed.
	ErrTimeout error = &Error{Code: codes.DeadlineExceeded, Reason: "TIMEOUT", Message: "the attempt's deadline has passed"}
	// ErrStopping means that the worker is stopping and StopTimeout has passed.
	ErrStopping error = &Error{Code: codes.Canceled, Reason: "STOPPING", Message: "the worker is stopping"}
)

// Error returns the human-readable message, with the field and the address of the broker.
func (e *Error) Error() string {
	text := e.Message
	if text == "" {
		text = e.Code.String()
	}
	if e.Field != "" && !strings.Contains(text, e.Field) {
		text += " (" + e.Field + ")"
	}
	if e.Broker != "" && (e.Reason == "" || errors.Is(e, ErrRequestTooLarge)) {
		text = e.Broker + ": " + text
	}
	return "howdah: " + text
}

// Is reports whether the target has the same code and, if it has a reason, the same reason. It also matches
// [context.Canceled] and [context.DeadlineExceeded] by code.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case *Error:
		return t.Code == e.Code && (t.Reason == "" || t.Reason == e.Reason)
	default:
		return target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded ||
			target == context.Canceled && e.Code == codes.Canceled
	}
}

// GRPCStatus returns the gRPC status, for [status.Code] and [status.FromError].
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// IsRetryable reports whether the same call may succeed later. Repeat an enqueue with the same request key.
func (e *Error) IsRetryable() bool { return isTransient(e) || e.RetryAfter > 0 }

// AsError converts an error of a stream or of a generated stub to an [*Error]. It returns nil for nil.
func AsError(err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	st := status.FromContextError(err)
	if s, ok := status.FromError(err); ok {
		st = s
	}
	e = &Error{Code: st.Code(), Message: st.Message()}
	if e.Code == codes.Internal && strings.HasPrefix(e.Message, "grpc: error while marshaling") {
		e.Code = codes.InvalidArgument // The message cannot be encoded, so no broker would ever receive it.
	}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			e.Reason = d.Reason
		case *errdetails.RetryInfo:
			e.RetryAfter = d.RetryDelay.AsDuration()
		case *errdetails.BadRequest:
			if len(d.FieldViolations) > 0 {
				e.Field = d.FieldViolations[0].Field
			}
		}
	}
	return e
}

// permanentErrors lists connection errors that a retry cannot fix. Each entry has a substring of gRPC's error text, and
// the message and code to return for it.
var permanentErrors = []struct {
	contains, message string
	code              codes.Code
}{
	{"this port needs TLS", "this port needs TLS: use https://", codes.FailedPrecondition},
	{"does not look like a TLS handshake", "this port does not speak TLS: use http://", codes.FailedPrecondition},
	{"x509: ", "the broker's certificate is not trusted", codes.FailedPrecondition},
	{"client certificate", "the broker refused the client certificate, or requires one", codes.Unauthenticated},
	{"tls: certificate required", "the broker asks for a client certificate, and none was shown", codes.Unauthenticated},
}

// withBroker converts the error of a call to this broker to an [*Error] with the broker's address and a clearer message.
func (b *broker) withBroker(err error) error {
	var e *Error
	if !errors.As(AsError(err), &e) {
		return nil
	}
	copied := *e // A copy, because other callers may hold the same error.
	e = &copied
	e.Broker = b.name
	for _, cause := range permanentErrors {
		if e.Reason == "" && e.Code == codes.Unavailable && strings.Contains(e.Message, cause.contains) {
			e.Code, e.Message = cause.code, fmt.Sprintf("%s (%s)", cause.message, e.Message)
		}
	}
	if e.Reason == "" && strings.Contains(e.Message, "HTTP status code received from server: 413") {
		e.Code, e.Reason = codes.ResourceExhausted, "REQUEST_TOO_LARGE"
		e.Message = "a proxy between client and broker refuses a request of this size (HTTP 413): raise the proxy's limit " +
			"(nginx: client_max_body_size), or send less at once"
	}
	return e
}

// isTransient reports whether this package retries the failed call automatically. It returns false for a full backlog,
// which the producer should handle.
func isTransient(err error) bool {
	var e *Error
	if !errors.As(err, &e) || e.RetryAfter > 0 {
		return false
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
		return true
	case codes.Internal, codes.Unknown:
		return e.Reason == "" // Without a reason, the error comes from the connection and not from the broker.
	}
	return false
}

func isUnauthenticated(err error) bool { return errors.Is(err, &Error{Code: codes.Unauthenticated}) }

// isRefusal reports whether the broker refuses the caller or the request, so that a new stream would fail with the same
// error.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated,
		codes.Unimplemented:
		return true
	}
	return false
}

// isDenied reports whether the broker refuses the credential for good. A refused token from a file is not final,
// because the file may be replaced.
func (s *session) isDenied(err error) bool {
	return errors.Is(err, &Error{Code: codes.PermissionDenied}) || isUnauthenticated(err) && s.c.cfg.TokenFile == ""
}
