package howdah

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"howdah.dev/go/internal/text"
)

// This file checks values that the client refuses itself, because they cannot be sent, or would silently lose their
// effect.

func invalid(field, format string, arguments ...any) error {
	return &Error{Code: codes.InvalidArgument, Field: field, Message: fmt.Sprintf(format, arguments...)}
}

// missing returns an error that matches [ErrNotFound] and names what does not exist.
func missing(kind, name string) error {
	return &Error{Code: codes.NotFound, Message: fmt.Sprintf("%s %q does not exist", kind, name)}
}

// checkNotNegative refuses a negative number or duration of a configuration.
func checkNotNegative[N int | int64 | time.Duration](field string, value N) error {
	if value < 0 {
		return invalid(field, "%s is %v: it must not be negative (0: the default)", field, value)
	}
	return nil
}

// apply calls functions that set fields of a message. It fails if one sets another field of a oneof than an earlier one, such
// as run_at after delay, because the message keeps only the last of these fields.
func apply[M proto.Message](message M, options []func(M)) error {
	fields := message.ProtoReflect()
	oneofs := fields.Descriptor().Oneofs()
	chosen := make([]protoreflect.FieldDescriptor, oneofs.Len())
	for _, set := range options {
		set(message)
		for i, before := range chosen {
			chosen[i] = fields.WhichOneof(oneofs.Get(i))
			if before != nil && chosen[i] != nil && chosen[i] != before {
				return invalid(string(chosen[i].Name()), "%s and %s are both set: set one", before.Name(), chosen[i].Name())
			}
		}
	}
	return nil
}

// checkText refuses a message with a text that is not valid UTF-8, because protobuf cannot encode it.
func checkText(message any) error {
	if m, ok := message.(proto.Message); ok {
		if field, problem := text.Invalid(m); field != "" {
			return invalid(field, "%s", problem)
		}
	}
	return nil
}

// checkedStream is a stream that checks the texts of the messages it sends.
type checkedStream struct{ grpc.ClientStream }

func (s checkedStream) SendMsg(message any) error {
	if err := checkText(message); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(message)
}
