package dev.howdah.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.Objects;

/** The token of a client, fixed or from a file that somebody else may replace. Its text is in no message. */
final class Credential {
    private final Path file;
    private String token;
    private FileTime changed;

    Credential(HowdahClientBuilder options) {
        file = options.tokenFile;
        token = options.token == null ? null : checked(options.token, "token");
        if (file != null) {
            try {
                changed = Files.getLastModifiedTime(file);
                token = checked(Files.readString(file), "token_file");
            } catch (IOException error) {
                throw HowdahException.invalid("token_file", error.toString());
            }
        }
    }

    boolean isSet() {
        return token != null;
    }

    /** The token, of the file as it is now: to ask when it was changed costs less than a call. */
    synchronized String token() {
        try {
            if (file != null && !Files.getLastModifiedTime(file).equals(changed)) {
                readAgain();
            }
        } catch (IOException gone) {
            // The token from before may still hold.
        }
        return token;
    }

    /** Reads the file again. Returns whether it has another token now. */
    synchronized boolean readAgain() {
        var before = token;
        try {
            if (file != null) {
                changed = Files.getLastModifiedTime(file);
                token = checked(Files.readString(file), "token_file");
            }
        } catch (IOException | HowdahException unreadable) {
            // The token from before may still hold.
        }
        return !Objects.equals(before, token);
    }

    private static String checked(String text, String field) {
        var token = text.strip();
        if (token.isEmpty() || !token.chars().allMatch(letter -> letter > ' ' && letter < 0x7f)) {
            throw HowdahException.invalid(field, "is empty, or has characters that no token has");
        }
        return token;
    }
}
