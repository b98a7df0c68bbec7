/** Errors of calls, and a transport that retries calls if that is safe. */
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createContextKey, createContextValues, type Transport } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/index.js";
import type { Network } from "./network.js";

type Details = Partial<Pick<HowdahError, "reason" | "field" | "retryAfterMs" | "broken" | "cause">>;

/** The error of a call, a producer or a worker: a refusal by a broker or by this client, or a broken connection. */
export class HowdahError extends Error {
  override readonly name: string = "HowdahError";
  /**
   * Machine-readable reason: one from the broker, such as `INVALID_FIELD`; one from this client, such as `LEASE_LOST`;
   * or `REQUEST_TOO_LARGE` if a proxy refuses the size of a request. Empty without a reason.
   */
  readonly reason: string;
  /** Path of the invalid field, such as `jobs[3].task_type`; empty if the error is not about a field. */
  readonly field: string;
  /** Delay before a retry, which the broker sends if a backlog is full or a rate limit is exceeded. */
  readonly retryAfterMs: number | undefined;
  /** Whether the connection broke. Then the call may have taken effect or not. */
  readonly broken: boolean;

  constructor(
    message: string,
    /** The gRPC code of the error. The client chooses it for errors that are not from a broker. */
    readonly code: Code,
    details: Details = {},
  ) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.reason = details.reason ?? "";
    this.field = details.field ?? "";
    this.retryAfterMs = details.retryAfterMs;
    this.broken = details.broken ?? false;
  }

  /** Whether the same call may succeed later. */
  get retryable(): boolean {
    const temporary = [Code.Unavailable, Code.DeadlineExceeded, Code.Aborted];
    return this.broken || this.retryAfterMs !== undefined || temporary.includes(this.code);
  }

  /** @internal Whether the broker refuses the caller or the request, so that a retry would fail with the same error. */
  get refused(): boolean {
    return !this.broken && REFUSALS.includes(this.code);
  }

  /** @internal Returns the same error with more text around its message. */
  within(before: string, after = ""): HowdahError {
    return new HowdahError(before + this.message + after, this.code, { ...this, cause: this });
  }

  /** @internal Converts an error that a call threw. */
  static from(error: unknown, server: string): HowdahError {
    if (error instanceof HowdahError) return error;
    const seen = ConnectError.from(error);
    if (seen.metadata.has("grpc-status")) {
      const delay = seen.findDetails(RetryInfoSchema)[0]?.retryDelay;
      return new HowdahError(seen.rawMessage || `${Code[seen.code]}`, seen.code, {
        reason: seen.findDetails(ErrorInfoSchema)[0]?.reason ?? "",
        field: seen.findDetails(BadRequestSchema)[0]?.fieldViolations[0]?.field ?? "",
        retryAfterMs: delay && durationMs(delay),
      });
    }
    // An error without a reason does not come from a broker, but from a timer, TLS, a proxy or a broken connection.
    if (seen.code === Code.DeadlineExceeded) return new HowdahError(`${server}: no answer in time`, seen.code);
    const text = chain(seen);
    const [, hint, code] = CAUSES.find(([pattern]) => pattern.test(text)) ?? [];
    if (hint) return new HowdahError(`${server}: ${hint}`, code ?? seen.code, { cause: seen });
    if (/^serialize/.test(text)) {
      const [, field = "", problem = ""] =
        /^serialize .*cannot encode field \S*\.(\w+) to \w+: (.*)$/s.exec(text) ?? [];
      const named = field ? `${field}: ${problem}` : text;
      return new HowdahError(named, Code.InvalidArgument, { field, cause: seen });
    }
    if (/^HTTP 413/.test(text))
      return new HowdahError(`${server}: ${TOO_LARGE_TEXT}`, Code.ResourceExhausted, {
        reason: TOO_LARGE,
        cause: seen,
      });
    const broken = !/^HTTP 4/.test(text) && seen.code !== Code.ResourceExhausted;
    return new HowdahError(`${server}: ${text}`, broken ? Code.Unavailable : seen.code, { broken, cause: seen });
  }
}

/** The worker no longer holds the job: another worker may be running it. */
export class LeaseLostError extends HowdahError {
  override readonly name = "LeaseLostError";

  constructor(id: bigint) {
    super(`the lease of job ${id} is lost`, Code.FailedPrecondition, { reason: "LEASE_LOST" });
  }
}

/**
 * @internal Reason of an error if a proxy refuses a request because of its size. No broker has received the request.
 */
export const TOO_LARGE = "REQUEST_TOO_LARGE";

const TOO_LARGE_TEXT =
  "a proxy between client and broker refuses a request of this size (HTTP 413): raise the proxy's limit " +
  "(nginx: client_max_body_size), or send less at once";

/** @internal Returns the error for a value that this client refuses before it sends anything. */
export const invalid = (field: string, message: string) =>
  new HowdahError(`${field}: ${message}`, Code.InvalidArgument, { field });

/** @internal Like {@link invalid}, with a text that continues after the field's name. */
export const refusal = (field: string, problem: string) =>
  new HowdahError(`${field} ${problem}`, Code.InvalidArgument, { field });

/** @internal Returns the error for an option with a wrong value. `advice` says what to give instead. */
export function wrong(field: string, value: unknown, advice: string): HowdahError {
  const limits = { depth: 1, maxArrayLength: 5, maxStringLength: 80, breakLength: Infinity };
  const shown = typeof value === "string" ? JSON.stringify(value.slice(0, 80)) : inspect(value, limits);
  return refusal(field, `is ${shown}: ${advice}`);
}

const REFUSALS = [
  Code.InvalidArgument,
  Code.FailedPrecondition,
  Code.OutOfRange,
  Code.PermissionDenied,
  Code.Unauthenticated,
  Code.Unimplemented,
];

/** TLS errors. Each entry has a pattern of the error's text, a message that says what to do, and the code to return. */
const CAUSES: readonly [RegExp, string, Code][] = [
  [/certificate.?required/i, "the broker asks for a client certificate, and none was shown", Code.Unauthenticated],
  [/wrong.version.number|packet length/i, "this port does not speak TLS: use http://", Code.FailedPrecondition],
  [/self.signed|unable to (get|verify)/i, "the broker's certificate is not trusted", Code.FailedPrecondition],
  [
    /altnames/i,
    "the broker's certificate is for another name: use its name in the address, or set serverName",
    Code.FailedPrecondition,
  ],
  [
    /protocol error|^HTTP 404/i,
    "what answers there is not the gRPC port of a broker, 7432 by default",
    Code.Unavailable,
  ],
  [/\balert\b/i, "the broker refused the client certificate; its log says why", Code.Unauthenticated],
];

/**
 * @internal Joins an error and its causes in one line, because the outer error of a transport does not name the cause.
 * `nameOf` returns a name to write before the text of an error, or an empty text.
 */
export function chain(error: unknown, nameOf: (error: Error) => string = () => ""): string {
  if (!(error instanceof Error)) return String(error);
  const message = error instanceof ConnectError ? error.rawMessage : error.message;
  const text = [nameOf(error), message].filter(Boolean).join(": ") || error.name;
  const cause = error.cause === undefined ? "" : chain(error.cause, nameOf);
  return text.includes(cause) ? text : `${text}: ${cause}`;
}

/**
 * @internal Exponential backoff from 50 ms to 5 s. Half of each pause is jitter, so that clients do not reconnect at
 * the same time.
 */
export class Backoff {
  #failures = 0;

  next = () => Math.min(50 * 2 ** this.#failures++, 5_000) * (0.5 + Math.random() / 2);

  reset = () => {
    this.#failures = 0;
  };
}

/** @internal Context key for an object in which a call records the broker that it uses. */
export const USED_BROKER = createContextKey<{ url: URL } | undefined>(undefined, { description: "howdah.used" });

/** @internal */
export const recordBroker = (used: { url: URL }) => createContextValues().set(USED_BROKER, used);

/**
 * Longest time of one attempt of a call. Then the next broker is tried. A broker that cannot reach Postgres answers
 * within 15 s.
 */
const ATTEMPT_TIMEOUT_MS = 16_000;

/**
 * Methods that are not idempotent, so they are sent once. A repeated call would lease more jobs or create more tokens
 * than the caller receives, or advance the clock twice.
 */
const NOT_IDEMPOTENT = new Set(["PullJobs", "CreateToken", "AdvanceClock"]);

/**
 * Whether a call may be repeated after a lost answer. Enqueues, schedule runs and bulk starts may be, if they have a
 * request key.
 */
function isIdempotent(method: string, input: object): boolean {
  if (NOT_IDEMPOTENT.has(method)) return false;
  const needsKey = ["EnqueueJobs", "RunSchedule", "StartBulk"].includes(method);
  return !needsKey || ("requestKey" in input && input.requestKey !== "");
}

/** Logs the stores that did not answer, because the response of a call for several stores is then incomplete. */
function logUnanswered(network: Network, method: string, header: Headers) {
  const stores = header.get("howdah-unanswered-stores");
  if (stores === null) return;
  const text = "these stores did not answer: the response lacks their data, and a change did not reach them";
  network.settings.logger.warn(`howdah: ${text}`, { method, stores });
}

/**
 * @internal Returns the transport of the generated clients. Each call has a deadline. A call that is safe to repeat is
 * retried on the next broker: an enqueue until its deadline, other calls once for each broker and once more.
 */
export function repeating(network: Network): Transport {
  return {
    async unary(method, signal, timeoutMs, header, input, values) {
      const deadline = performance.now() + (timeoutMs ?? network.settings.requestTimeoutMs);
      const backoff = new Backoff();
      let cause: HowdahError | undefined;
      for (let attempts = 0, tooLarge = 0, renewed = false; ; attempts++) {
        const broker = network.current;
        const began = performance.now();
        const remaining = deadline - began;
        // The brokers that were not tried in this round share the remaining time. A call that is not repeated gets all
        // of it, because no other broker will be tried, and because PullJobs may wait long.
        const share = Math.min(ATTEMPT_TIMEOUT_MS, remaining / (network.size - (attempts % network.size)));
        const timeout = NOT_IDEMPOTENT.has(method.name) ? remaining : share;
        let sent = false;
        const used = values?.get(USED_BROKER);
        if (used) used.url = network.url(broker);
        try {
          const transport = await within(timeout, network.shared(broker));
          sent = true;
          const left = whole(began + timeout - performance.now());
          const answer = await transport.unary(method, signal, left, header, input, values);
          logUnanswered(network, method.name, answer.header);
          return answer;
        } catch (thrown) {
          signal?.throwIfAborted();
          const error = HowdahError.from(thrown, network.name(broker));
          const hasNewToken = error.code === Code.Unauthenticated && !renewed && network.settings.credential.renew();
          if (hasNewToken) {
            renewed = true;
            continue;
          }
          // A proxy refused the request because of its size. The path to another broker may have a higher limit. If
          // every path refuses the request, no broker has received it.
          tooLarge = error.reason === TOO_LARGE ? tooLarge + 1 : 0;
          const isTemporary = error.retryable && error.retryAfterMs === undefined;
          if (
            !(isTemporary || (tooLarge > 0 && tooLarge < network.size)) ||
            (sent && !isIdempotent(method.name, input))
          )
            throw error;
          network.moveOnFrom(broker);
          const pause = backoff.next();
          const last = method.name !== "EnqueueJobs" && attempts >= network.size;
          if (last) throw error;
          // The deadline may have cut off the last attempt; then the error before it tells more.
          if (error.code !== Code.DeadlineExceeded) cause = error;
          if (performance.now() + pause >= deadline)
            throw (cause ?? error).within("no broker answered in time; last error: ");
          network.settings.logger.debug(`${method.name} failed; trying again`, { error: error.message });
          await sleep(pause, undefined, { signal });
        }
      }
    },
    async stream(method, signal, timeoutMs, header, input, values) {
      const broker = network.current;
      const failed = (thrown: unknown) => {
        signal?.throwIfAborted();
        const error = HowdahError.from(thrown, network.name(broker));
        if (error.retryable && error.reason !== "DEADLINE_EXCEEDED") network.moveOnFrom(broker);
        return error;
      };
      try {
        const began = performance.now();
        const transport = await within(timeoutMs, network.shared(broker));
        const left = timeoutMs && whole(began + timeoutMs - performance.now());
        const response = await transport.stream(method, signal, left, header, input, values);
        return { ...response, message: rethrowing(response.message, failed) };
      } catch (error) {
        throw failed(error);
      }
    },
  };
}

/** Rounds a timeout up to whole milliseconds, because gRPC servers refuse or ignore fractions. */
const whole = (ms: number) => Math.max(1, Math.ceil(ms));

/** Waits at most this long for a promise. After a timeout, the work behind the promise continues. */
async function within<T>(ms: number | undefined, work: Promise<T>): Promise<T> {
  if (ms === undefined || !Number.isFinite(ms)) return work;
  let timer: NodeJS.Timeout | undefined;
  const timedOut = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new ConnectError("no answer in time", Code.DeadlineExceeded)), whole(ms));
  });
  return Promise.race([work, timedOut]).finally(() => clearTimeout(timer));
}

async function* rethrowing<T>(messages: AsyncIterable<T>, failed: (error: unknown) => HowdahError): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw failed(error);
  }
}
