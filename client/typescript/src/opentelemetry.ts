/**
 * OpenTelemetry spans and metrics, with `client.use(telemetry())`. Needs the package `@opentelemetry/api`.
 *
 * @packageDocumentation
 */
import {
  type Attributes,
  context,
  type Link,
  ROOT_CONTEXT,
  type Span,
  type SpanContext,
  SpanKind,
  trace,
  type Tracer,
} from "@opentelemetry/api";
import type { Broker, Job, Middleware, proto, Settled } from "./index.js";
import { checkOptions } from "./given.js";
import type { OutcomeMessage } from "./outcome.js";
import {
  contextOf,
  destination,
  fail,
  setContext,
  type Instruments,
  instruments,
  kindOf,
  messageId,
  operation,
  server,
} from "./semconv.js";
import { VERSION } from "./settings.js";

/** Settings of {@link telemetry}. */
export interface TelemetryOptions {
  /**
   * Starts a new trace for each handler, with a link to the producer's. Default: the handler joins the producer's
   * trace.
   */
  linked?: boolean;
}

/**
 * Returns middleware that records spans and metrics of enqueues, attempts and outcomes, by the semantic conventions for
 * messaging. It adds the trace context to jobs that have no `traceparent`. It records nothing until the program has set
 * up OpenTelemetry's SDK.
 */
export function telemetry(options: TelemetryOptions = {}): Middleware {
  checkOptions(options, { linked: "flag" }, "an option of telemetry");
  const { linked = false } = options;
  const tracer = trace.getTracer("howdah", VERSION);
  const measured = instruments();
  const attempts = new WeakMap<Job, Attempt>();
  return {
    async enqueue(jobs, next, requestKey, broker) {
      if (jobs.length === 0) return next();
      const send = new Send(tracer, jobs, requestKey !== undefined, broker);
      try {
        const answers = await context.with(trace.setSpan(context.active(), send.span), next);
        send.end(measured(), answers);
        return answers;
      } catch (error) {
        send.end(measured(), [], error, true);
        throw error;
      }
    },
    handle(job, next, broker) {
      const attempt = new Attempt(tracer, job, broker, linked);
      attempts.set(job, attempt);
      measured().consumed.add(1, { ...operation("process"), ...destination(job.taskType), ...server(broker) });
      return context.with(trace.setSpan(context.active(), attempt.span), next);
    },
    decided: (job, outcome, error) => attempts.get(job)?.end(measured(), outcome, error),
    settled: (job, settled, broker) => attempts.get(job)?.settled(measured(), settled, broker),
  };
}

/** Telemetry of an enqueue of one or more jobs. */
class Send {
  readonly span: Span;
  readonly #creates = new Map<number, Span>();
  readonly #types = new Map<string, number>();
  readonly #oneType: Attributes;
  readonly #isOne: boolean;
  readonly #began = performance.now();

  constructor(
    private readonly tracer: Tracer,
    jobs: proto.NewJob[],
    hasKey: boolean,
    private readonly broker: Broker,
  ) {
    for (const { taskType } of jobs) this.#types.set(taskType, (this.#types.get(taskType) ?? 0) + 1);
    const [type = ""] = this.#types.keys();
    this.#oneType = this.#types.size === 1 ? destination(type) : {};
    this.#isOne = jobs.length === 1;
    // If the caller passes a request key, jobs get no trace context, because a repeated request must be identical.
    const without = new Set(hasKey ? [] : [...jobs.keys()].filter((index) => jobs[index]?.traceparent === ""));
    this.span = tracer.startSpan(this.#types.size === 1 ? `send ${type}` : "send", {
      kind: this.#isOne && without.size > 0 ? SpanKind.PRODUCER : SpanKind.CLIENT,
      links: jobs.map(contextOf).filter(isThere).map(linkTo),
      attributes: {
        ...operation("send", "send"),
        ...this.#oneType,
        ...server(broker),
        ...(!this.#isOne && { "messaging.batch.message_count": jobs.length }),
      },
    });
    for (const [index, job] of jobs.entries()) {
      if (!without.has(index)) continue;
      const create = !this.#isOne && this.span.isRecording() ? this.#create(index, job.taskType) : this.span;
      setContext(job, create);
    }
  }

  #create(index: number, taskType: string): Span {
    const attributes = { ...operation("create", "create"), ...destination(taskType), ...server(this.broker) };
    const options = { kind: SpanKind.PRODUCER, attributes };
    const span = this.tracer.startSpan(`create ${taskType}`, options, trace.setSpan(context.active(), this.span));
    this.span.addLink(linkTo(span.spanContext()));
    this.#creates.set(index, span);
    return span;
  }

  end({ operations, sent }: Instruments, answers: proto.EnqueuedJob[], error?: unknown, hasFailed = false): void {
    const where = server(this.broker);
    for (const [index, create] of this.#creates) {
      create.setAttributes({ ...where, ...messageId(answers[index]?.id) }).end();
    }
    this.span.setAttributes({ ...where, ...(this.#isOne && messageId(answers[0]?.id)) });
    const kind = hasFailed ? kindOf(error) : undefined;
    if (kind !== undefined) fail(this.span, kind, error instanceof Error ? error.message : String(error), error);
    this.span.end();
    const failed = kind === undefined ? {} : { "error.type": kind };
    const seconds = (performance.now() - this.#began) / 1000;
    operations.record(seconds, { ...operation("send", "send"), ...this.#oneType, ...where, ...failed });
    for (const [type, count] of this.#types)
      sent.add(count, { ...operation("send"), ...destination(type), ...where, ...failed });
  }
}

/** Telemetry of an attempt and of the settling of its outcome. */
class Attempt {
  readonly span: Span;
  readonly #startTime = Date.now();
  readonly #began = performance.now();
  readonly #isRecorded: boolean;
  #endTime: number | undefined;
  readonly #where: Attributes;

  constructor(
    private readonly tracer: Tracer,
    private readonly job: Job,
    broker: Broker,
    linked: boolean,
  ) {
    const origin = contextOf(job);
    this.#where = server(broker);
    const attributes = { ...operation("process", "process"), ...this.#ofTheJob(), ...this.#where };
    const links = origin ? [linkTo(origin)] : [];
    const options = { kind: SpanKind.CONSUMER, attributes, links, startTime: this.#startTime };
    // Sets the parent of the span explicitly. Otherwise the context that was active when the worker started would be
    // the parent.
    const parent = origin && !linked ? trace.setSpanContext(ROOT_CONTEXT, origin) : ROOT_CONTEXT;
    this.span = tracer.startSpan(`process ${job.taskType}`, options, parent);
    this.#isRecorded = this.span.isRecording();
  }

  #ofTheJob = (): Attributes => ({
    ...destination(this.job.taskType),
    ...messageId(this.job.id),
    "howdah.attempt": this.job.attempt,
  });

  /** Returns the wall-clock time, calculated from the start of the attempt so that the attempt's spans are in order. */
  #now = () => this.#startTime + performance.now() - this.#began;

  end({ processes }: Instruments, outcome: OutcomeMessage, error: unknown): void {
    const kind = outcome.case !== "nack" ? undefined : outcome.value.noRetry ? "fatal" : "retry";
    if (outcome.case === "nack" && kind !== undefined) fail(this.span, kind, outcome.value.error, error);
    this.#endTime = this.#now();
    this.span.end(this.#endTime);
    const of = { ...operation("process"), ...destination(this.job.taskType), ...this.#where };
    processes.record((performance.now() - this.#began) / 1000, { ...of, ...(kind && { "error.type": kind }) });
  }

  settled({ operations }: Instruments, { outcome, durationMs, error }: Settled, broker: Broker): void {
    const kind = error && kindOf(error);
    const attributes = { ...operation(outcome, "settle"), ...destination(this.job.taskType), ...server(broker) };
    operations.record(durationMs / 1000, { ...attributes, ...(kind && { "error.type": kind }) });
    if (!this.#isRecorded) return;
    const now = this.#now();
    const options = {
      kind: SpanKind.CLIENT,
      // If the worker released the job before the handler ended, there is no end time. The span then starts at the
      // release.
      startTime: this.#endTime ?? now - durationMs,
      attributes: { ...attributes, ...this.#ofTheJob() },
    };
    const parent = trace.setSpan(ROOT_CONTEXT, this.span);
    const span = this.tracer.startSpan(`${outcome} ${this.job.taskType}`, options, parent);
    if (error && kind) fail(span, kind, error.message, error);
    span.end(now);
  }
}

const linkTo = (to: SpanContext): Link => ({ context: to });
const isThere = <T>(value: T | undefined): value is T => value !== undefined;
