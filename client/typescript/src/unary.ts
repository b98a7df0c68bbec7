/**
 * Sends outcomes in unary calls, after a stream broke with many unanswered bytes.
 *
 * To a proxy a stream is one request, and some proxies limit the bytes of a request. A new stream with the same
 * outcomes may break at the same byte again. So these outcomes are sent with `SettleJobs`, a few at a time. A unary
 * call that is too large fails with HTTP 413, whereas a stream is only cut off.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { Backoff, HowdahError, repeating, TOO_LARGE } from "./calls.js";
import * as pb from "./gen/index.js";
import { type Entry, size } from "./ledger.js";
import type { Session } from "./session.js";

/** Maximum bytes of a `SettleJobs` call with more than one outcome. */
const CALL_BYTES = 64 << 10;

/** @internal */
export class UnarySettler {
  #isRunning = false;
  #maxBytes = CALL_BYTES;

  constructor(
    private readonly session: Session,
    private readonly quit: AbortSignal,
  ) {}

  /**
   * Starts `SettleJobs` calls if outcomes are queued for them. The calls continue until all of these outcomes are
   * settled or the worker ends.
   */
  start(): void {
    if (this.#isRunning || this.session.ledger.unary.length === 0) return;
    this.#isRunning = true;
    void this.#run().finally(() => {
      this.#isRunning = false;
    });
  }

  async #run(): Promise<void> {
    const workers = createClient(pb.WorkerService, repeating(this.session.network));
    const backoff = new Backoff();
    const { ledger } = this.session;
    while (ledger.unary.length > 0 && !this.quit.aborted) {
      const sent = ledger.nextUnary(this.#maxBytes);
      const outcomes = sent.map(({ job: { id, token }, outcome }) => create(pb.OutcomeSchema, { id, token, outcome }));
      try {
        const { results } = await workers.settleJobs({ outcomes }, { signal: this.quit });
        backoff.reset();
        for (const result of results) this.session.settled(result);
        ledger.moveToStream(sent);
      } catch (thrown) {
        if (this.quit.aborted) return;
        if (!this.#failed(sent, HowdahError.from(thrown, "")))
          await sleep(backoff.next(), undefined, { signal: this.quit }).catch(() => {});
      }
      this.session.update();
    }
  }

  /** Handles a failed `SettleJobs` call. Returns false if the next call must wait for the backoff to pass. */
  #failed(sent: Entry[], error: HowdahError): boolean {
    const { ledger, network } = this.session;
    const { logger } = network.settings;
    const [first] = sent;
    if (error.reason === TOO_LARGE && first && sent.length === 1) {
      const { id } = first.job;
      logger.error("howdah: the outcome is too large for a proxy: the job fails", { job: id, error: error.message });
      const text = `the outcome takes ${size(first.outcome)} bytes and does not reach the broker: ${error.message}`;
      first.outcome = { case: "nack", value: create(pb.NackSchema, { error: text, noRetry: true }) };
    } else if (error.reason === TOO_LARGE || error.retryable) {
      if (!error.retryable) this.#maxBytes /= 2;
      ledger.unary.unshift(...sent);
      return !error.retryable;
    } else {
      // The broker refused `SettleJobs`, but it may still accept the outcomes on a stream.
      logger.warn("howdah: a call with outcomes was refused; sending the outcomes on the stream", {
        error: error.message,
      });
    }
    ledger.moveToStream(sent);
    return true;
  }
}
