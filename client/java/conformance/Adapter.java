import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import dev.howdah.client.*;
import dev.howdah.client.Job;
import dev.howdah.client.Job.Outcome;
import dev.howdah.client.NewJob;
import dev.howdah.client.Worker;
import dev.howdah.v1.*;
import io.grpc.MethodDescriptor;
import io.grpc.stub.ClientCalls;
import io.opentelemetry.api.trace.*;
import io.opentelemetry.context.Context;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.io.*;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * The Java client's adapter for the conformance suite. It exchanges JSON lines on standard input and output; see
 * conformance/ADAPTER.md.
 */
class Adapter {
    static final JsonMapper JSON = JsonMapper.builder().build();
    static final InMemorySpanExporter SPANS = InMemorySpanExporter.create();
    static final OpenTelemetrySdk TELEMETRY = OpenTelemetrySdk.builder().setTracerProvider(
        SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(SPANS)).build()).build();
    static final Map<String, HowdahClient> CLIENTS = new ConcurrentHashMap<>();
    static final Map<String, Worker> WORKERS = new ConcurrentHashMap<>();
    static final Map<Long, Run> RUNS = new ConcurrentHashMap<>();
    static final AtomicLong LAST_RUN = new AtomicLong();

    record Run(Job job, CompletableFuture<JsonNode> finish) {}

    public static void main(String[] arguments) throws IOException {
        var commands = Executors.newCachedThreadPool();
        var lines = new BufferedReader(new InputStreamReader(System.in, java.nio.charset.StandardCharsets.UTF_8));
        for (var line = lines.readLine(); line != null; line = lines.readLine()) {
            var command = JSON.readTree(line);
            commands.execute(() -> {
                try {
                    write(Map.of("id", command.get("id"), "ok", run(command)));
                } catch (Throwable error) {
                    write(Map.of("id", command.get("id"), "error", errorFields(error)));
                }
            });
        }
        Runtime.getRuntime().halt(0);
    }

    static synchronized void write(Map<String, ?> line) {
        System.out.println(JSON.writeValueAsString(line));
        System.out.flush();
    }

    static Map<String, Object> errorFields(Throwable thrown) {
        var error = thrown instanceof CompletionException && thrown.getCause() != null ? thrown.getCause() : thrown;
        if (error instanceof HowdahException known) {
            return Map.of("code", known.code().name(), "reason", known.reason(), "field", known.field(), "message",
                known.getMessage(), "retry_after_ms", known.retryAfter().map(Duration::toMillis).orElse(0L));
        }
        var code = error instanceof UnsupportedOperationException ? "UNIMPLEMENTED"
            : error instanceof NoSuchElementException ? "NOT_FOUND" : "UNKNOWN";
        return Map.of("code", code, "message", String.valueOf(error));
    }

    static Object run(JsonNode command) throws Exception {
        var action = command.get("do").asString();
        var name = command.path("client").asString("");
        var client = CLIENTS.get(name);
        switch (action) {
            case "hello": return Map.of("protocol", 1, "client", "howdah-client-java", "pid",
                ProcessHandle.current().pid());
            case "connect": CLIENTS.remove(name); CLIENTS.put(name, connect(command)); return Map.of();
            case "close": client.close(); return Map.of();
            case "enqueue": return enqueue(client, command);
            case "produce": return produce(client, command);
            case "wait":
                var jobs = new ArrayList<JsonNode>();
                client.awaitAll(command.get("ids").valueStream().map(JsonNode::asLong).toList(),
                    Duration.ofMillis(command.get("timeout_ms").asLong()), job -> jobs.add(json(job)));
                return Map.of("jobs", jobs);
            case "call": return Map.of("responses", call(client, command));
            case "work": work(client, command); return Map.of();
            case "stop": WORKERS.get(command.get("worker").asString()).close(); return Map.of();
            case "spans": return Map.of("spans", spans());
            case "finish": case "progress": case "extend": case "results": return withRun(action, command);
            default: throw new UnsupportedOperationException(command.toString());
        }
    }

    static Object withRun(String action, JsonNode command) throws Exception {
        var run = RUNS.get(command.get("run").asLong());
        if (run == null && (!action.equals("finish") || command.get("run").asLong() > LAST_RUN.get())) {
            throw new NoSuchElementException("no such run");
        } else if (run != null && action.equals("finish")) {
            run.finish.complete(command);
        } else if (action.equals("results")) {
            return Map.of("dependencies", run.job.results().map(Adapter::json).toList());
        } else if (action.equals("extend")) {
            run.job.extend(Duration.ofMillis(command.get("duration_ms").asLong()));
        } else if (action.equals("progress")) {
            var report = ProgressReport.newBuilder();
            var fields = ((ObjectNode) command.deepCopy()).without(List.of("id", "do", "run"));
            JsonFormat.parser().merge(fields.toString(), report);
            run.job.report(report.build());
        }
        return Map.of();
    }

    static void ifPresent(JsonNode node, String field, Consumer<JsonNode> setter) {
        Optional.ofNullable(node.get(field)).ifPresent(setter);
    }

    static HowdahClient connect(JsonNode command) {
        var builder = HowdahClient.builder();
        if (!command.has("addresses")) {
            builder.environment(System.getenv());
        }
        ifPresent(command, "addresses", all -> builder.addresses(all.valueStream().map(JsonNode::asString)
            .toArray(String[]::new)));
        ifPresent(command, "token", token -> builder.token(token.asString()));
        ifPresent(command, "token_file", file -> builder.tokenFile(Path.of(file.asString())));
        var tls = command.path("tls");
        ifPresent(tls, "ca", file -> builder.trust(Path.of(file.asString())));
        ifPresent(tls, "cert", file -> builder.certificate(Path.of(file.asString()), Path.of(tls.get("key").asString())));
        ifPresent(command, "request_timeout_ms", time -> builder.requestTimeout(Duration.ofMillis(time.asLong())));
        if (command.path("middleware").asBoolean(false)) {
            builder.middleware(new Around());
        }
        return builder.middleware(new Telemetry(TELEMETRY)).connect();
    }

    static class Around implements Middleware {
        @Override
        public CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs, String requestKey,
                Enqueue next) {
            return next.enqueue(jobs.stream().map(job -> job.toBuilder().header("conformance",
                "enqueue").build()).toList());
        }

        @Override
        public Outcome handle(Job job, Handle next) throws Exception {
            write(Map.of("event", "around", "at", "before", "job", Long.toString(job.id())));
            try {
                return next.handle(job);
            } finally {
                write(Map.of("event", "around", "at", "after", "job", Long.toString(job.id())));
            }
        }
    }

    static JsonNode json(Message message) {
        try {
            return JSON.readTree(JsonFormat.printer().preservingProtoFieldNames().print(message));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static List<NewJob> jobs(JsonNode command) throws IOException {
        var jobs = new ArrayList<NewJob>();
        for (var job : command.get("jobs")) {
            var message = dev.howdah.v1.NewJob.newBuilder();
            JsonFormat.parser().merge(job.toString(), message);
            jobs.add(new NewJob(null, message.build()));
        }
        return jobs;
    }

    static Map<String, Object> resultFields(HowdahClient.Enqueued job) {
        var outcome = job.outcome().name().replace("ENQUEUE_OUTCOME_", "").toLowerCase();
        return Map.of("id", Long.toString(job.id()), "is_new", job.isNew(), "outcome", outcome);
    }

    static Object enqueue(HowdahClient client, JsonNode command) throws IOException {
        var parts = command.path("traceparent").asString("--").split("-");
        var parent = parts.length < 4 ? Context.root() : Context.root()
            .with(Span.wrap(SpanContext.createFromRemoteParent(
            parts[1], parts[2], TraceFlags.fromHex(parts[3], 0), TraceState.getDefault())));
        var jobs = jobs(command);
        try (var scope = parent.makeCurrent()) {
            var enqueued = command.has("request_key") ? client.enqueueAll(jobs, command.get("request_key").asString())
                : jobs.size() == 1 ? List.of(client.enqueue(jobs.get(0))) : client.enqueueAll(jobs);
            return Map.of("jobs", enqueued.stream().map(Adapter::resultFields).toList());
        }
    }

    static Object produce(HowdahClient client, JsonNode command) throws IOException {
        var limits = new Producer.Limits(command.path("max_in_flight").asInt(4),
            command.path("max_batch_jobs").asInt(1000),
            4 << 20, 64 << 20);
        try (var producer = client.producer(limits)) {
            var answers = jobs(command).stream().map(producer::submit).toList();
            return Map.of("results", answers.stream().map(answer ->
                answer.<Object>thenApply(Adapter::resultFields).exceptionally(error -> Map.of("error",
                    errorFields(error))).join()).toList());
        }
    }

    @SuppressWarnings("unchecked")
    static List<JsonNode> call(HowdahClient client, JsonNode command) throws IOException {
        var services = Stream.of(JobServiceGrpc.getServiceDescriptor(), WorkerServiceGrpc.getServiceDescriptor(),
            TaskTypeServiceGrpc.getServiceDescriptor(), SettingsServiceGrpc.getServiceDescriptor(),
            ScheduleServiceGrpc.getServiceDescriptor(), AccessServiceGrpc.getServiceDescriptor(),
            BulkServiceGrpc.getServiceDescriptor());
        var method = (MethodDescriptor<Message, Message>) services.flatMap(service -> service.getMethods().stream())
            .filter(each -> each.getFullMethodName().equals(command.get("method").asString())).findFirst()
                .orElseThrow();
        var prototype = ((MethodDescriptor.PrototypeMarshaller<?>) method.getRequestMarshaller()).getMessagePrototype();
        var request = ((Message) prototype).newBuilderForType();
        JsonFormat.parser().merge(command.get("request").toString(), request);
        return client.call(JobServiceGrpc::newBlockingStub, stub -> {
            var answers = new ArrayList<JsonNode>();
            ClientCalls.blockingServerStreamingCall(stub.getChannel(), method, stub.getCallOptions(), request.build())
                .forEachRemaining(answer -> answers.add(json(answer)));
            return answers;
        });
    }

    static void work(HowdahClient client, JsonNode command) {
        var name = command.get("worker").asString();
        var builder = client.worker();
        ifPresent(command, "window_bytes", bytes -> builder.windowBytes(bytes.asLong()));
        ifPresent(command, "max_message_bytes", bytes -> builder.maxMessageBytes(bytes.asInt()));
        ifPresent(command, "liveness_ms", time -> builder.liveness(Duration.ofMillis(time.asLong())));
        ifPresent(command, "stop_timeout_ms", time -> builder.stopTimeout(Duration.ofMillis(time.asLong())));
        ifPresent(command, "labels", all -> all.properties().forEach(each -> builder.label(each.getKey(),
            each.getValue().asString())));
        int total = 0;
        for (var type : command.get("types")) {
            total += type.get("concurrency").asInt();
        }
        builder.concurrency(total);
        for (var type : command.get("types")) {
            int concurrency = type.get("concurrency").asInt();
            if (type.path("payload").asString("bytes").equals("json")) {
                builder.handle(type.get("name").asString(), concurrency, JsonNode.class, (json, job) -> handle(name,
                    json, job));
            } else {
                builder.handle(type.get("name").asString(), concurrency, ByteString.class, (bytes, job) ->
                    handle(name, null, job));
            }
        }
        var worker = builder.start();
        WORKERS.put(name, worker);
        boolean sigterm = command.path("on_sigterm").asBoolean(false);
        if (sigterm) {
            worker.stopOnShutdown();
        }
        worker.ended().whenComplete((report, error) -> {
            write(error == null ? Map.of("event", "ended", "worker", name)
                : Map.of("event", "ended", "worker", name, "error", errorFields(error)));
            if (sigterm) {
                Runtime.getRuntime().halt(0);
            }
        });
    }

    static Outcome handle(String worker, JsonNode payload, Job job) throws Exception {
        long number = LAST_RUN.incrementAndGet();
        var run = new Run(job, new CompletableFuture<>());
        RUNS.put(number, run);
        var span = Span.current().getSpanContext();
        var trace = "00-" + span.getTraceId() + "-" + span.getSpanId() + "-" + span.getTraceFlags().asHex();
        var started = new HashMap<String, Object>(Map.of("event", "started", "worker", worker, "run", number,
            "job", json(job.message()), "trace", span.isValid() ? trace : ""));
        Optional.ofNullable(payload).ifPresent(json -> started.put("json", json));
        write(started);
        try {
            while (true) {
                try {
                    return outcome(run.finish.get());
                } catch (InterruptedException interrupted) {
                    var reason = job.cancelReason()
                        .map(cause -> cause.name().replace("CANCEL_REASON_", "").toLowerCase());
                    write(Map.of("event", "cancelled", "worker", worker, "run", number, "reason",
                        reason.orElse("stop")));
                }
            }
        } finally {
            RUNS.remove(number);
        }
    }

    static Outcome outcome(JsonNode finish) throws Exception {
        Thread.sleep(finish.path("block_ms").asLong(0));
        var error = finish.path("error").asString("");
        var after = Duration.ofMillis(finish.path("after_ms").asLong(0));
        Object result = finish.has("json") ? finish.get("json")
            : Base64.getDecoder().decode(finish.path("result").asString(""));
        return switch (finish.get("outcome").asString()) {
            case "ok" -> Outcome.ok(result);
            case "next" -> Outcome.nextStage(finish.get("next_stage").asString(), result);
            case "retry" -> finish.has("after_ms") ? Outcome.retryAfter(after, error) : Outcome.retry(error);
            case "fatal" -> Outcome.fatal(error);
            case "snooze" -> Outcome.snooze(after);
            case "release" -> Outcome.release();
            default -> throw new Exception(error);
        };
    }

    static List<Object> spans() {
        var spans = SPANS.getFinishedSpanItems();
        SPANS.reset();
        return spans.stream().<Object>map(span -> {
            var attributes = new HashMap<String, Object>();
            span.getAttributes().forEach((key, value) -> attributes.put(key.getKey(), value));
            return Map.of("name", span.getName(), "kind", span.getKind().name().toLowerCase(), "trace_id",
                span.getTraceId(),
                "span_id", span.getSpanId(), "parent_id", span.getParentSpanContext().isValid()
                    ? span.getParentSpanId() : "",
                "links", List.of(), "status", span.getStatus().getStatusCode().name().toLowerCase(), "attributes",
                    attributes);
        }).toList();
    }
}
