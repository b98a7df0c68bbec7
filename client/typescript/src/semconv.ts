/**
 * Attributes, trace contexts, failures and instruments for the telemetry of jobs, by OpenTelemetry's conventions for
 * messaging.
 */
import {
  type Attributes,
  type Counter,
  createTraceState,
  type Histogram,
  isSpanContextValid,
  metrics,
  type Span,
  type SpanContext,
  SpanStatusCode,
} from "@opentelemetry/api";
import { Code } from "@connectrpc/connect";
import type { Broker } from "./handler.js";
import type { HowdahError } from "./calls.js";
import { VERSION } from "./settings.js";

type OperationType = "send" | "create" | "process" | "settle";

/** @internal */
export const operation = (name: string, type?: OperationType): Attributes => ({
  "messaging.system": "howdah",
  "messaging.operation.name": name,
  ...(type && { "messaging.operation.type": type }),
});

/** @internal */
export const destination = (taskType: string): Attributes => ({ "messaging.destination.name": taskType });

/** @internal */
export const messageId = (id: bigint | undefined): Attributes =>
  id === undefined ? {} : { "messaging.message.id": String(id) };

/** @internal */
export const server = ({ url }: Broker): Attributes => ({
  // OpenTelemetry's conventions want an IPv6 address without brackets.
  "server.address": url.hostname.replace(/^\[(.*)\]$/, "$1"),
  "server.port": Number(url.port) || (url.protocol === "https:" ? 443 : 80),
});

/** @internal An object with a W3C trace context. */
export interface Traced {
  traceparent: string;
  tracestate: string;
}

const TRACEPARENT = /^(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:$|-)/;

/** @internal Returns the trace context of a job, if it is valid. */
export function contextOf({ traceparent, tracestate }: Traced): SpanContext | undefined {
  const [, version, traceId = "", spanId = "", flags = "0"] = TRACEPARENT.exec(traceparent.trim()) ?? [];
  if (version === "00" && traceparent.trim().length !== 55) return undefined;
  const found: SpanContext = { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
  if (tracestate) found.traceState = createTraceState(tracestate);
  return isSpanContextValid(found) ? found : undefined;
}

/** @internal Stores the context of a span in a job, as `traceparent` and `tracestate`. */
export function setContext(job: Traced, span: Span): void {
  const spanContext = span.spanContext();
  if (!isSpanContextValid(spanContext)) return;
  const flags = spanContext.traceFlags.toString(16).padStart(2, "0");
  job.traceparent = `00-${spanContext.traceId}-${spanContext.spanId}-${flags}`;
  job.tracestate = spanContext.traceState?.serialize() ?? "";
}

/** @internal Returns the value of the attribute `error.type` for an error. */
export function kindOf(error: unknown): string {
  // Checks properties instead of the class, because an ES module and a CommonJS module of this package have different
  // classes.
  const { reason, code, name } = error as Partial<HowdahError>;
  if (reason) return reason;
  if (name === "AbortError" || code === Code.Canceled) return "CANCELLED";
  return (Code[code ?? Code.Unknown] ?? "Unknown").replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
}

const LONGEST_STATUS = 1 << 10;

/** @internal Marks a span as failed. */
export function fail(span: Span, kind: string, text: string, error: unknown): void {
  span.recordException(error instanceof Error ? error : String(error));
  span.setAttribute("error.type", kind);
  const bytes = new TextEncoder().encode(text).subarray(0, LONGEST_STATUS);
  // With `stream`, the decoder omits a last character that is cut off in the middle of its bytes.
  const message = new TextDecoder().decode(bytes, { stream: true });
  span.setStatus({ code: SpanStatusCode.ERROR, message });
}

const BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10];

/** @internal */
export interface Instruments {
  operations: Histogram;
  processes: Histogram;
  sent: Counter;
  consumed: Counter;
}

/** @internal Returns a function that returns the instruments. It also finds an SDK that the program sets up later. */
export function instruments(): () => Instruments {
  let made: Instruments | undefined;
  let by: unknown;
  return () => {
    const provider = metrics.getMeterProvider();
    if (!made || by !== provider) [made, by] = [make(provider), provider];
    return made;
  };
}

function make(provider: ReturnType<typeof metrics.getMeterProvider>): Instruments {
  const meter = provider.getMeter("howdah", VERSION);
  const seconds = (name: string, description: string) =>
    meter.createHistogram(name, { description, unit: "s", advice: { explicitBucketBoundaries: BUCKETS } });
  const messages = (name: string, description: string) => meter.createCounter(name, { description, unit: "{message}" });
  return {
    operations: seconds("messaging.client.operation.duration", "Duration of an enqueue, or of settling a job."),
    processes: seconds("messaging.process.duration", "Run time of a handler."),
    sent: messages("messaging.client.sent.messages", "Jobs that were sent."),
    consumed: messages("messaging.client.consumed.messages", "Jobs passed to a handler."),
  };
}
