package dev.howdah.client;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import tools.jackson.databind.json.JsonMapper;

/** Settings of a {@link HowdahClient}. */
public final class HowdahClientBuilder {
    List<String> addresses = List.of("http://127.0.0.1:7432");
    String token;
    Path tokenFile;
    boolean insecureToken;
    String ca;
    String certificate;
    String key;
    Duration connectTimeout = Duration.ofSeconds(5);
    Duration requestTimeout = Duration.ofSeconds(30);
    int maxMessageBytes = 16 << 20;
    JsonMapper json = JsonMapper.builder().build();
    final List<Middleware> middleware = new ArrayList<>();

    HowdahClientBuilder() {}

    /**
     * {@return this}
     *
     * @param addresses of brokers of one database; the first that answers is used
     */
    public HowdahClientBuilder addresses(String... addresses) { this.addresses = List.of(addresses); return this; }

    /**
     * {@return this} Takes over the variables that the program {@code howdah} knows.
     *
     * @param variables by name
     */
    public HowdahClientBuilder environment(Map<String, String> variables) {
        // What is empty counts as not set.
        var given = new HashMap<>(variables);
        given.values().removeIf(String::isEmpty);
        if (given.containsKey("HOWDAH_TOKEN") && given.containsKey("HOWDAH_TOKEN_FILE")) {
            throw HowdahException.invalid("token", "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set; one is enough");
        }
        addresses = List.of(given.getOrDefault("HOWDAH_SERVER", addresses.get(0)).split(","));
        token = given.getOrDefault("HOWDAH_TOKEN", token);
        tokenFile = given.containsKey("HOWDAH_TOKEN_FILE") ? Path.of(given.get("HOWDAH_TOKEN_FILE")) : tokenFile;
        ca = given.getOrDefault("HOWDAH_TLS_CA", ca);
        certificate = given.getOrDefault("HOWDAH_TLS_CLIENT_CERT", certificate);
        key = given.getOrDefault("HOWDAH_TLS_CLIENT_KEY", key);
        var insecure = given.getOrDefault("HOWDAH_CLIENT_INSECURE", "no").toLowerCase(Locale.ROOT);
        insecureToken |= !Set.of("0", "n", "no", "f", "false", "off").contains(insecure);
        return this;
    }

    /**
     * {@return this}
     *
     * @param token that goes with each call
     */
    public HowdahClientBuilder token(String token) { this.token = token; return this; }

    /**
     * {@return this}
     *
     * @param file with the token, which is read again when it changes
     */
    public HowdahClientBuilder tokenFile(Path file) { tokenFile = file; return this; }

    /** {@return this} Sends the token over {@code http://} to other machines too, where all on the way can read it. */
    public HowdahClientBuilder insecureToken() { insecureToken = true; return this; }

    /**
     * {@return this}
     *
     * @param file of the authorities (PEM) to trust at {@code https://}, instead of Java's own
     */
    public HowdahClientBuilder trust(Path file) { ca = file.toString(); return this; }

    /**
     * {@return this}
     *
     * @param certificate shown to brokers (PEM)
     * @param privateKey of it (PEM, PKCS #8)
     */
    public HowdahClientBuilder certificate(Path certificate, Path privateKey) {
        this.certificate = certificate.toString();
        key = privateKey.toString();
        return this;
    }

    /**
     * {@return this}
     *
     * @param timeout the longest time to connect, by default 5 s
     */
    public HowdahClientBuilder connectTimeout(Duration timeout) { connectTimeout = timeout; return this; }

    /**
     * {@return this}
     *
     * @param timeout the longest time of a call, its retries included; by default 30 s
     */
    public HowdahClientBuilder requestTimeout(Duration timeout) { requestTimeout = timeout; return this; }

    /**
     * {@return this}
     *
     * @param bytes of the largest message, by default 16 MiB
     */
    public HowdahClientBuilder maxMessageBytes(int bytes) { maxMessageBytes = bytes; return this; }

    /**
     * {@return this}
     *
     * @param json for payloads, results and checkpoints
     */
    public HowdahClientBuilder json(JsonMapper json) { this.json = json; return this; }

    /**
     * {@return this}
     *
     * @param middleware around each enqueue and each handler; the first is the outermost
     */
    public HowdahClientBuilder middleware(Middleware middleware) { this.middleware.add(middleware); return this; }

    /**
     * {@return the client, connected to the first broker that answers}
     *
     * @throws HowdahException if none does
     */
    public HowdahClient connect() {
        var client = build();
        try {
            client.connection.connect();
            return client;
        } catch (RuntimeException error) {
            client.close();
            throw error;
        }
    }

    /** {@return the client, which connects at its first use: the brokers may start later} */
    public HowdahClient build() {
        return new HowdahClient(this);
    }
}
