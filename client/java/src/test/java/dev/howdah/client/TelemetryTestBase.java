package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.data.HistogramPointData;
import io.opentelemetry.sdk.metrics.data.LongPointData;
import io.opentelemetry.sdk.testing.exporter.InMemoryMetricReader;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;

/** Base class of telemetry tests. It records spans and metrics in memory, and has functions to compare them. */
abstract class TelemetryTestBase {
    private static final List<Double> BUCKETS =
        List.of(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0);
    static final String OPERATION = "messaging.client.operation.duration";
    static final String SENT = "messaging.client.sent.messages";
    static final String CONSUMED = "messaging.client.consumed.messages";
    static final String PROCESS = "messaging.process.duration";

    final InMemorySpanExporter exporter = InMemorySpanExporter.create();
    final InMemoryMetricReader reader = InMemoryMetricReader.create();
    final OpenTelemetrySdk sdk = OpenTelemetrySdk.builder()
        .setTracerProvider(SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(exporter)).build())
        .setMeterProvider(SdkMeterProvider.builder().registerMetricReader(reader).build()).build();

    List<SpanData> spans(String name) {
        return exporter.getFinishedSpanItems().stream().filter(span -> span.getName().equals(name)).toList();
    }

    SpanData span(String name) {
        var found = spans(name);
        assertEquals(1, found.size(), name);
        return found.get(0);
    }

    static String traceparent(SpanData span) {
        return "00-" + span.getTraceId() + "-" + span.getSpanId() + "-"
            + span.getSpanContext().getTraceFlags().asHex();
    }

    static Set<String> links(SpanData span) {
        return span.getLinks().stream().map(link -> link.getSpanContext().getSpanId()).collect(Collectors.toSet());
    }

    static Map<String, Object> attributes(SpanData span) {
        var found = new HashMap<String, Object>();
        span.getAttributes().forEach((key, value) -> found.put(key.getKey(), value));
        return found;
    }

    static Map<String, Object> expected(String operation, String kind, String taskType, Map<String, ?> more) {
        var found = new HashMap<String, Object>(more);
        found.putAll(Map.of("messaging.system", "howdah", "messaging.operation.name", operation,
            "messaging.operation.type", kind, "server.address", "127.0.0.1", "server.port",
            (long) URI.create(Brokers.address()).getPort()));
        if (taskType != null) {
            found.put("messaging.destination.name", taskType);
        }
        return found;
    }

    /** Returns the number of recordings of a metric for a task type, by operation and error. */
    Map<String, Long> counted(String metric, String taskType) {
        var found = new TreeMap<String, Long>();
        for (var data : reader.collectAllMetrics()) {
            if (!data.getName().equals(metric)) {
                continue;
            }
            boolean isDuration = metric.equals(OPERATION) || metric.equals(PROCESS);
            assertEquals(isDuration ? "s" : "{message}", data.getUnit());
            for (var point : data.getData().getPoints()) {
                var words = new ArrayList<String>();
                var of = new HashMap<String, Object>();
                point.getAttributes().forEach((key, value) -> of.put(key.getKey(), value));
                if (!taskType.equals(of.remove("messaging.destination.name"))) {
                    continue;
                }
                assertEquals("howdah", of.remove("messaging.system"));
                assertTrue(of.remove("server.address") instanceof String && of.remove("server.port") instanceof Long);
                for (var name : List.of("messaging.operation.name", "messaging.operation.type", "error.type")) {
                    var word = of.remove(name);
                    if (word != null) {
                        words.add(word.toString());
                    }
                }
                assertEquals(Map.of(), of);
                if (point instanceof HistogramPointData histogram) {
                    assertEquals(BUCKETS, histogram.getBoundaries());
                    found.put(String.join(" ", words), histogram.getCount());
                } else {
                    found.put(String.join(" ", words),
                        ((LongPointData) point).getValue());
                }
            }
        }
        return found;
    }
}
