package dev.howdah.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.Objects;

/** The token of a client: fixed, or from a file that may be replaced. No message contains it. */
final class Credential {
    private final Path file;
    private String token;
    private FileTime changed;

    Credential(HowdahClientBuilder options) {
        file = options.tokenFile;
        if (file != null && options.token != null) {
            throw HowdahException.invalid("token", "a token and a token file are both set: set one");
        }
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

    /** Returns the current token. Rereads the file if its modification time has changed. */
    synchronized String token() {
        try {
            if (file != null && !Files.getLastModifiedTime(file).equals(changed)) {
                reread();
            }
        } catch (IOException gone) {
            // The file cannot be read: keeps the previous token, which may still be valid.
        }
        return token;
    }

    /** Rereads the file. Returns whether the token has changed. */
    synchronized boolean reread() {
        var before = token;
        try {
            if (file != null) {
                changed = Files.getLastModifiedTime(file);
                token = checked(Files.readString(file), "token_file");
            }
        } catch (IOException | HowdahException unreadable) {
            // The file cannot be read: keeps the previous token, which may still be valid.
        }
        return !Objects.equals(before, token);
    }

    private static String checked(String text, String field) {
        var token = text.strip();
        if (token.isEmpty() || !token.chars().allMatch(letter -> letter > ' ' && letter < 0x7f)) {
            throw HowdahException.invalid(field,
                "the token is empty, or contains spaces or characters other than printable ASCII");
        }
        return token;
    }
}
