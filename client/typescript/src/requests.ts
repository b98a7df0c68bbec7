/** Extensions and progress reports that the broker has not answered. This module does no I/O. */
import { Code } from "@connectrpc/connect";
import { HowdahError, invalid, LeaseLostError } from "./calls.js";
import * as pb from "./gen/index.js";

interface PendingRequest<T> {
  readonly message: T;
  state: "unsent" | "sent" | "later";
  resolve(): void;
  reject(error: HowdahError): void;
}

/**
 * Limit in bytes for resending unanswered requests together after a stream broke. Above it, they are resent one at a
 * time.
 */
const RESEND_LIMIT = 64 << 10;

const checkpointBytes = (message: object) =>
  "checkpoint" in message && message.checkpoint instanceof Uint8Array ? message.checkpoint.length : 0;

/** @internal Extensions or progress reports that are unsent or unanswered. */
export class PendingRequests<T extends { id: bigint; token: bigint }> {
  readonly #pending = new Set<PendingRequest<T>>();
  /** Set after a stream broke with many unanswered bytes: requests are sent one at a time until all are answered. */
  #oneAtATime = false;

  async add(message: T, timeoutMs: number): Promise<void> {
    const request: PendingRequest<T> = { message, state: "unsent", resolve: () => {}, reject: () => {} };
    const answer = new Promise<void>((resolve, reject) =>
      this.#pending.add(Object.assign(request, { resolve, reject })),
    );
    const timedOut = () =>
      new HowdahError(`job ${message.id}: no answer within ${timeoutMs} ms`, Code.DeadlineExceeded);
    const timer = setTimeout(() => request.reject(timedOut()), timeoutMs);
    return answer.finally(() => {
      clearTimeout(timer);
      this.#pending.delete(request);
    });
  }

  /**
   * Takes the next requests to send. A message may name a job only once. At most 32 requests, because 32 checkpoints
   * of 64 KiB are 2 MiB, which fits in a message.
   */
  next(): T[] {
    const jobs = new Set<bigint>();
    const isNext = ({ message, state }: PendingRequest<T>) =>
      jobs.size < jobs.add(message.id).size && state === "unsent";
    const requests = [...this.#pending].filter(isNext).slice(0, this.#oneAtATime ? 1 : 32);
    this.#oneAtATime &&= this.#pending.size > 0;
    if (this.#oneAtATime && this.#sent().length > 0) return [];
    for (const request of requests) request.state = "sent";
    return requests.map((request) => request.message);
  }

  #sent = () => [...this.#pending].filter(({ state }) => state === "sent");

  /** Handles the broker's answers. Returns whether some requests must be sent again later. */
  answered(results: pb.SettleResult[]): boolean {
    for (const { id, token, status, message } of results) {
      const request = [...this.#pending].find(({ state, message }) => state === "sent" && message.token === token);
      if (!request) continue;
      request.state = "later";
      if (status === pb.SettleStatus.OK) request.resolve();
      else if (status === pb.SettleStatus.INVALID) request.reject(invalid("job", message));
      else if (status !== pb.SettleStatus.UNAVAILABLE) request.reject(new LeaseLostError(id));
    }
    return results.some((result) => result.status === pb.SettleStatus.UNAVAILABLE);
  }

  /**
   * Makes requests ready to be sent again: those that the broker could not store or, with `all` on a new stream, every
   * unanswered request.
   */
  resend(all = false): void {
    const bytes = this.#sent().reduce((sum, { message }) => sum + checkpointBytes(message), 0);
    this.#oneAtATime ||= all && bytes > RESEND_LIMIT;
    for (const request of this.#pending) if (all || request.state === "later") request.state = "unsent";
  }
}
