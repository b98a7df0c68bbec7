package dev.howdah.client;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Finds texts with unpaired surrogates. Protobuf would encode each of them as a question mark. */
final class Texts {
    private Texts() {}

    /**
     * Fails if a text of a message cannot be encoded.
     *
     * @param parent path of the message, which precedes the names of its fields; may be empty
     */
    static void check(Message message, String parent) {
        for (var entry : message.getAllFields().entrySet()) {
            var field = entry.getKey();
            var path = parent + field.getName();
            if (!(entry.getValue() instanceof List<?> values)) {
                checkValue(field, entry.getValue(), path);
                continue;
            }
            for (int index = 0; index < values.size(); index++) {
                checkValue(field, values.get(index), path + (field.isMapField() ? "" : "[" + index + "]"));
            }
        }
    }

    private static void checkValue(FieldDescriptor field, Object value, String path) {
        if (value instanceof Message message && field.isMapField()) {
            message.getAllFields().forEach((part, text) -> checkValue(part, text, path));
        } else if (value instanceof Message message) {
            check(message, path + ".");
        } else if (value instanceof String text && !isValid(text)) {
            throw HowdahException.invalid(path, "the text has an unpaired surrogate: \"" + repaired(text) + "\"");
        }
    }

    /** {@return whether each surrogate of the text is part of a pair} */
    static boolean isValid(String text) {
        return StandardCharsets.UTF_8.newEncoder().canEncode(text);
    }

    /** {@return the text with U+FFFD instead of unpaired surrogates} */
    static String repaired(String text) {
        if (isValid(text)) {
            return text;
        }
        var valid = new StringBuilder();
        text.codePoints().map(each -> each >= Character.MIN_SURROGATE && each <= Character.MAX_SURROGATE ? 0xfffd : each)
            .forEach(valid::appendCodePoint);
        return valid.toString();
    }
}
