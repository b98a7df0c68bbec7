package dev.howdah.client;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.OneofDescriptor;
import com.google.protobuf.Message;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * The fields that a builder has set in the oneofs of its message. The message keeps only the last field of a oneof, so two
 * of them are a mistake.
 */
final class Choices {
    private final Message.Builder message;
    private final Map<OneofDescriptor, FieldDescriptor> last = new HashMap<>();
    /** The oneofs that were set since the builder was made. An option of a copied job may be replaced once. */
    private final Set<OneofDescriptor> chosen = new HashSet<>();

    Choices(Message.Builder message) {
        this.message = message;
        for (var oneof : message.getDescriptorForType().getRealOneofs()) {
            last.put(oneof, message.getOneofFieldDescriptor(oneof));
        }
    }

    /** Fails if the last change has replaced another field of a oneof, such as {@code delay} by {@code run_at}. */
    void check() {
        for (var oneof : message.getDescriptorForType().getRealOneofs()) {
            var now = message.getOneofFieldDescriptor(oneof);
            var before = last.put(oneof, now);
            if (now != null && now != before && !chosen.add(oneof)) {
                throw HowdahException.invalid(now.getName(), before.getName() + " and " + now.getName()
                    + " are both set: set one");
            }
        }
    }
}
