package otelhowdah

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	howdah "howdah.dev/go"
)

type meters struct {
	operation, process metric.Float64Histogram
	sent, consumed     metric.Int64Counter
}

// newMeters makes the instruments. It passes an error, such as a duplicate name, to OpenTelemetry's global error
// handler.
func newMeters(meter metric.Meter) meters {
	seconds := func(name, description string) metric.Float64Histogram {
		histogram, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
		handleError(err)
		return histogram
	}
	messages := func(name, description string) metric.Int64Counter {
		counter, err := meter.Int64Counter(name, metric.WithUnit("{message}"), metric.WithDescription(description))
		handleError(err)
		return counter
	}
	return meters{
		operation: seconds("messaging.client.operation.duration",
			"Duration of messaging operation initiated by a producer or consumer client."),
		process: seconds("messaging.process.duration", "Duration of processing operation."),
		sent: messages("messaging.client.sent.messages",
			"Number of messages producer attempted to send to the broker."),
		consumed: messages("messaging.client.consumed.messages",
			"Number of messages that were delivered to the application."),
	}
}

func handleError(err error) {
	if err != nil {
		otel.Handle(err)
	}
}

// labels returns the attributes of a metric. class is the value of the attribute error.type; empty for a success.
func (t *Tracing) labels(o operation, typed bool, broker, class string) metric.MeasurementOption {
	found := append(o.attributes(typed), t.broker(broker)...)
	if class != "" {
		found = append(found, errorType(class))
	}
	return metric.WithAttributeSet(attribute.NewSet(found...))
}

// recordDuration records the duration of an operation: an enqueue, or the settling of an outcome until its
// confirmation.
func (t *Tracing) recordDuration(ctx context.Context, o operation, since time.Time, broker, class string) {
	if t.meters.operation.Enabled(ctx) {
		t.meters.operation.Record(ctx, time.Since(since).Seconds(), t.labels(o, true, broker, class))
	}
}

// classOf returns the value of the attribute error.type: the reason of the error, or else the name of its gRPC code. It
// is empty without an error.
func classOf(err error) string {
	var known *howdah.Error
	if !errors.As(howdah.AsError(err), &known) {
		return ""
	} else if known.Reason != "" {
		return known.Reason
	}
	name := strings.Replace(known.Code.String(), "Canceled", "Cancelled", 1)
	return strings.ToUpper(words.ReplaceAllString(name, "${1}_$2"))
}

var words = regexp.MustCompile("([a-z])([A-Z])")

// shorten shortens the text of an error for a span, to at most 1 KiB.
func shorten(text string) string {
	const maxBytes = 1 << 10
	return strings.ToValidUTF8(text[:min(len(text), maxBytes)], "")
}
