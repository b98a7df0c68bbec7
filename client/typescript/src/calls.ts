/** Errors of calls, and the transport that repeats calls where that is safe. */
import { setTimeout as sleep } from "node:timers/promises";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createContextKey, createContextValues, type Transport } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/index.js";
import type { Network } from "./network.js";

type Details = Partial<Pick<HowdahError, "reason" | "field" | "retryAfterMs" | "broken" | "cause">>;

/** What a broker or this client refused, or why a broker could not be reached. */
export class HowdahError extends Error {
  override readonly name: string = "HowdahError";
  /** A constant for programs, such as `INVALID_FIELD`; empty if the error does not come from a broker. */
  readonly reason: string;
  /** The field that was refused, such as `jobs[3].task_type`; otherwise empty. */
  readonly field: string;
  /** How long to wait before trying again, if the broker says so: a backlog is full, a rate was exceeded. */
  readonly retryAfterMs: number | undefined;
  /** The connection broke, so it is not known whether the call took effect. */
  readonly broken: boolean;

  constructor(
    message: string,
    /** The gRPC code that fits best. */
    readonly code: Code,
    details: Details = {},
  ) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.reason = details.reason ?? "";
    this.field = details.field ?? "";
    this.retryAfterMs = details.retryAfterMs;
    this.broken = details.broken ?? false;
  }

  /** Whether the same call may succeed a little later. */
  get retryable(): boolean {
    const passing = [Code.Unavailable, Code.DeadlineExceeded, Code.Aborted];
    return this.broken || this.retryAfterMs !== undefined || passing.includes(this.code);
  }

  /** @internal Whether the broker refuses the caller or the call: another try would end the same way. */
  get refused(): boolean {
    return !this.broken && REFUSALS.includes(this.code);
  }

  /** @internal Turns what a call threw into such an error. */
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
    // Made on this side: a timer, TLS, a proxy, or the connection broke.
    if (seen.code === Code.DeadlineExceeded) return new HowdahError(`${server}: no answer in time`, seen.code);
    const text = chain(seen);
    const [, said, code] = CAUSES.find(([pattern]) => pattern.test(text)) ?? [];
    if (said) return new HowdahError(`${server}: ${said}`, code ?? seen.code, { cause: seen });
    if (/^serialize/.test(text)) return new HowdahError(text, Code.InvalidArgument, { cause: seen });
    const broken = !/^HTTP 4/.test(text) && seen.code !== Code.ResourceExhausted;
    return new HowdahError(`${server}: ${text}`, broken ? Code.Unavailable : seen.code, { broken, cause: seen });
  }
}

/** The worker does not hold the job any more: another worker may be running it. */
export class LeaseLostError extends HowdahError {
  override readonly name = "LeaseLostError";

  constructor(id: bigint) {
    super(`the lease of job ${id} is lost`, Code.FailedPrecondition, { reason: "LEASE_LOST" });
  }
}

/** @internal The caller's own mistake, found before anything was sent. */
export const invalid = (field: string, message: string) =>
  new HowdahError(`${field}: ${message}`, Code.InvalidArgument, { field });

const REFUSALS = [
  Code.InvalidArgument,
  Code.FailedPrecondition,
  Code.OutOfRange,
  Code.PermissionDenied,
  Code.Unauthenticated,
  Code.Unimplemented,
];

/** What TLS refuses, in words that say what to do. */
const CAUSES: readonly [RegExp, string, Code][] = [
  [/certificate.?required/i, "the broker asks for a client certificate, and none was shown", Code.Unauthenticated],
  [/wrong.version.number|packet length/i, "this port does not speak TLS: use http://", Code.FailedPrecondition],
  [/self.signed|unable to (get|verify)/i, "the broker's certificate is not trusted", Code.FailedPrecondition],
  [/altnames/i, "the broker's certificate is for another name", Code.FailedPrecondition],
  [/\balert\b/i, "the broker refused the client certificate; its log says why", Code.Unauthenticated],
];

/** @internal An error and its causes in one line: the outer errors of a transport say almost nothing. */
export function chain(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const own = error instanceof ConnectError ? error.rawMessage : error.message || error.name;
  const cause = error.cause === undefined ? "" : chain(error.cause);
  return own.includes(cause) ? own : `${own}: ${cause}`;
}

/** @internal Pauses from 50 ms to 5 s. Half of each is random: clients that fail together do not return together. */
export class Backoff {
  #failures = 0;

  next = () => Math.min(50 * 2 ** this.#failures++, 5_000) * (0.5 + Math.random() / 2);

  reset = () => {
    this.#failures = 0;
  };
}

/** @internal What a call with it notes: the broker that it uses. */
export const USED = createContextKey<{ url: URL } | undefined>(undefined, { description: "howdah.used" });

/** @internal */
export const noting = (used: { url: URL }) => createContextValues().set(USED, used);

/** A broker that cannot reach Postgres answers within 15 s; one that is silent for longer is left for the next one. */
const LONGEST_TRY_MS = 16_000;

/** Sent again after a lost answer, they would lease more jobs, or make more tokens, than the caller gets. */
const ONCE = new Set(["PullJobs", "CreateToken"]);

/** After a lost answer, others must not be sent again without a request key. */
function isSafe(method: string, input: object): boolean {
  if (ONCE.has(method)) return false;
  const needsKey = ["EnqueueJobs", "RunSchedule", "StartBulk"].includes(method);
  return !needsKey || ("requestKey" in input && input.requestKey !== "");
}

/** Logs which stores an answer leaves out: nobody has to guess whether a list is complete. */
function noteUnanswered(network: Network, method: string, header: Headers) {
  const stores = header.get("howdah-unanswered-stores");
  if (stores === null) return;
  const said = "these stores did not answer: what they have is missing, and a change has not reached them";
  network.settings.logger.warn(`howdah: ${said}`, { method, stores });
}

/**
 * @internal The transport of the generated clients. Each call has a deadline. A call that is safe to repeat is repeated
 * at the next broker: an enqueue until its deadline, others once for each broker and once more.
 */
export function repeating(network: Network): Transport {
  return {
    async unary(method, signal, timeoutMs, header, input, values) {
      const deadline = performance.now() + (timeoutMs ?? network.settings.requestTimeoutMs);
      const backoff = new Backoff();
      // A call that is made once has no other broker to leave time for, and PullJobs waits.
      const longest = ONCE.has(method.name) ? Infinity : LONGEST_TRY_MS;
      for (let tries = 0, renewed = false; ; tries++) {
        const broker = network.current;
        // gRPC has whole numbers only: servers refuse or ignore others.
        const patience = Math.max(1, Math.ceil(Math.min(deadline - performance.now(), longest)));
        let sent = false;
        const used = values?.get(USED);
        if (used) used.url = network.url(broker);
        try {
          const transport = await network.shared(broker);
          sent = true;
          const answer = await transport.unary(method, signal, patience, header, input, values);
          noteUnanswered(network, method.name, answer.header);
          return answer;
        } catch (thrown) {
          signal?.throwIfAborted();
          const error = HowdahError.from(thrown, network.name(broker));
          const another = error.code === Code.Unauthenticated && !renewed && network.settings.credential.renew();
          if (another) {
            renewed = true;
            continue;
          }
          const passing = error.retryable && error.retryAfterMs === undefined;
          if (!passing || (sent && !isSafe(method.name, input))) throw error;
          network.moveOnFrom(broker);
          const pause = backoff.next();
          const last = method.name !== "EnqueueJobs" && tries >= network.size;
          if (last || performance.now() + pause >= deadline) throw error;
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
        if (error.retryable) network.moveOnFrom(broker);
        return error;
      };
      try {
        const transport = await network.shared(broker);
        const response = await transport.stream(method, signal, timeoutMs, header, input, values);
        return { ...response, message: rethrowing(response.message, failed) };
      } catch (error) {
        throw failed(error);
      }
    },
  };
}

async function* rethrowing<T>(messages: AsyncIterable<T>, failed: (error: unknown) => HowdahError): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw failed(error);
  }
}
