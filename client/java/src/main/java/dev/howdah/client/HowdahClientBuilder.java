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
     * @param addresses addresses of brokers of one database. The client uses the first one that answers
     */
    public HowdahClientBuilder addresses(String... addresses) { this.addresses = List.of(addresses); return this; }

    /**
     * {@return this} Reads the environment variables of the program {@code howdah}, such as {@code HOWDAH_SERVER}.
     *
     * @param variables environment variables by name. An empty value counts as unset
     */
    public HowdahClientBuilder environment(Map<String, String> variables) {
        var settings = new HashMap<>(variables);
        settings.values().removeIf(String::isEmpty);
        if (settings.containsKey("HOWDAH_TOKEN") && settings.containsKey("HOWDAH_TOKEN_FILE")) {
            throw HowdahException.invalid("token", "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set: unset one");
        }
        addresses = List.of(settings.getOrDefault("HOWDAH_SERVER", addresses.get(0)).split(","));
        token = settings.getOrDefault("HOWDAH_TOKEN", token);
        tokenFile = settings.containsKey("HOWDAH_TOKEN_FILE") ? Path.of(settings.get("HOWDAH_TOKEN_FILE")) : tokenFile;
        ca = settings.getOrDefault("HOWDAH_TLS_CA", ca);
        certificate = settings.getOrDefault("HOWDAH_TLS_CLIENT_CERT", certificate);
        key = settings.getOrDefault("HOWDAH_TLS_CLIENT_KEY", key);
        var insecure = settings.getOrDefault("HOWDAH_CLIENT_INSECURE", "no").toLowerCase(Locale.ROOT);
        insecureToken |= !Set.of("0", "n", "no", "f", "false", "off").contains(insecure);
        return this;
    }

    /**
     * {@return this}
     *
     * @param token token to authenticate each call. Brokers on other machines need {@code https://}
     */
    public HowdahClientBuilder token(String token) { this.token = token; return this; }

    /**
     * {@return this}
     *
     * @param file file with the token. The client rereads it when it changes
     */
    public HowdahClientBuilder tokenFile(Path file) { tokenFile = file; return this; }

    /**
     * {@return this} Sends the token over {@code http://} to brokers on other machines too, which exposes it to the
     * network. Use it only on encrypted networks, such as a VPN or a service mesh with mutual TLS.
     */
    public HowdahClientBuilder insecureToken() { insecureToken = true; return this; }

    /**
     * {@return this}
     *
     * @param file file with the CA certificates (PEM) to trust for {@code https://}, instead of Java's
     */
    public HowdahClientBuilder trust(Path file) { ca = file.toString(); return this; }

    /**
     * {@return this}
     *
     * @param certificate file with the client certificate (PEM)
     * @param privateKey file with its key (PEM, PKCS #8)
     */
    public HowdahClientBuilder certificate(Path certificate, Path privateKey) {
        this.certificate = certificate.toString();
        key = privateKey.toString();
        return this;
    }

    /**
     * {@return this}
     *
     * @param timeout timeout of one attempt to connect, by default 5 s
     */
    public HowdahClientBuilder connectTimeout(Duration timeout) {
        connectTimeout = HowdahException.notNegative("connectTimeout", timeout);
        return this;
    }

    /**
     * {@return this}
     *
     * @param timeout timeout of a call, including retries; by default 30 s
     */
    public HowdahClientBuilder requestTimeout(Duration timeout) {
        requestTimeout = HowdahException.notNegative("requestTimeout", timeout);
        return this;
    }

    /**
     * {@return this}
     *
     * @param bytes the largest message sent or accepted, by default 16 MiB
     */
    public HowdahClientBuilder maxMessageBytes(int bytes) {
        HowdahException.checkLeast("maxMessageBytes", bytes, 1);
        maxMessageBytes = bytes;
        return this;
    }

    /**
     * {@return this}
     *
     * @param json Jackson mapper for payloads, results and checkpoints
     */
    public HowdahClientBuilder json(JsonMapper json) { this.json = json; return this; }

    /**
     * {@return this}
     *
     * @param middleware middleware around each enqueue and each handler. The first one is the outermost
     */
    public HowdahClientBuilder middleware(Middleware middleware) { this.middleware.add(middleware); return this; }

    /**
     * {@return the client, connected to the first broker that answers}
     *
     * @throws HowdahException if no broker answers
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

    /** {@return the client, which connects at its first call, so that the brokers may start later} */
    public HowdahClient build() {
        return new HowdahClient(this);
    }
}
