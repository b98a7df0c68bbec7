// Package text finds texts that protobuf cannot encode.
package text

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Invalid returns the path of the first text of a message that is not valid UTF-8, such as `jobs[0].key`, and a description
// of the problem. Both are empty if all texts are valid.
func Invalid(message proto.Message) (field, problem string) {
	bad := find(message.ProtoReflect())
	if bad == nil {
		return "", ""
	}
	field = bad.path[1:]
	return field, fmt.Sprintf("%s is not valid UTF-8: %.100q", field, bad.text)
}

// invalidText is a text that is not valid UTF-8. Its path begins with the separator of the parent's path, such as `.key`.
type invalidText struct{ path, text string }

func find(message protoreflect.Message) (found *invalidText) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if kind := field.Kind(); kind != protoreflect.StringKind && kind != protoreflect.MessageKind {
			return true
		}
		index := ""
		switch {
		case field.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, entry protoreflect.Value) bool {
				if found = inValue(key.Value()); found == nil {
					found = inValue(entry)
				}
				return found == nil
			})
		case field.IsList():
			for i := 0; i < value.List().Len() && found == nil; i++ {
				if found = inValue(value.List().Get(i)); found != nil {
					index = fmt.Sprintf("[%d]", i)
				}
			}
		default:
			found = inValue(value)
		}
		if found != nil {
			found.path = "." + string(field.Name()) + index + found.path
		}
		return found == nil
	})
	return found
}

func inValue(value protoreflect.Value) *invalidText {
	switch v := value.Interface().(type) {
	case string:
		if !utf8.ValidString(v) {
			return &invalidText{text: v}
		}
	case protoreflect.Message:
		return find(v)
	}
	return nil
}
