/**
 * Traces with OpenTelemetry: `client.use(tracing())`. Needs the package `@opentelemetry/api`.
 *
 * @packageDocumentation
 */
import { context, propagation, ROOT_CONTEXT, type Span, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import type { Middleware } from "./index.js";

/**
 * A span for each enqueue, and one for each attempt, in the trace of the job's enqueue, by the semantic conventions for
 * messaging. The context travels in the job's `traceparent` and `tracestate`, unless the job has its own.
 */
export function tracing(): Middleware {
  const tracer = trace.getTracer("howdah");
  return {
    enqueue(jobs, next, requestKey) {
      const types = [...new Set(jobs.map((job) => job.taskType))];
      const name = types.length === 1 ? `send ${types[0]}` : "send";
      const attributes = {
        "messaging.system": "howdah",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        ...(types.length === 1 && { "messaging.destination.name": types[0] }),
        ...(jobs.length > 1 && { "messaging.batch.message_count": jobs.length }),
      };
      return tracer.startActiveSpan(name, { kind: SpanKind.PRODUCER, attributes }, (span) => {
        const carrier: { traceparent?: string; tracestate?: string } = {};
        propagation.inject(context.active(), carrier);
        // A repeated request must have the same jobs, and a new context would make others of them.
        if (requestKey === undefined) for (const job of jobs) if (job.traceparent === "") Object.assign(job, carrier);
        return ended(span, next, (answers) => {
          if (answers.length === 1) span.setAttribute("messaging.message.id", String(answers[0]?.id));
        });
      });
    },
    handle(job, next) {
      const attributes = {
        "messaging.system": "howdah",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": job.taskType,
        "messaging.message.id": String(job.id),
        "howdah.job.attempt": job.attempt,
      };
      const { traceparent, tracestate } = job;
      const parent = propagation.extract(ROOT_CONTEXT, { traceparent, tracestate });
      const options = { kind: SpanKind.CONSUMER, attributes };
      return tracer.startActiveSpan(`process ${job.taskType}`, options, parent, (span) => ended(span, next));
    },
  };
}

async function ended<T>(span: Span, run: () => Promise<T>, note: (result: T) => void = () => {}): Promise<T> {
  try {
    const result = await run();
    note(result);
    return result;
  } catch (error) {
    const known = error instanceof Error ? error : new Error(String(error));
    span.recordException(known);
    span.setAttribute("error.type", known.name);
    span.setStatus({ code: SpanStatusCode.ERROR, message: known.message });
    throw error;
  } finally {
    span.end();
  }
}
