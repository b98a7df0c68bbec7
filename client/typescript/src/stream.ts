/** One `Work` stream of a worker: sends and receives its messages, and detects when it is broken. */
import { create } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HowdahError } from "./calls.js";
import * as pb from "./gen/index.js";
import type { Batch } from "./ledger.js";
import type { CancelReason } from "./outcome.js";
import type { Session } from "./session.js";
import type { StreamLink } from "./thread.js";

type Message = pb.WorkRequest["message"];

/**
 * Limits on `Settle` messages. With fewer than `EAGER_MESSAGES` unanswered ones, outcomes are sent at once. With more,
 * outcomes accumulate until they number a quarter of the slots (1/`SLOT_FRACTION`). With `MAX_MESSAGES` unanswered
 * messages, nothing is sent until an answer comes. So messages grow under load, and few slots are idle because outcomes
 * wait.
 */
const [EAGER_MESSAGES, MAX_MESSAGES, SLOT_FRACTION] = [4, 16, 4];
/** Times that the broker may take: to answer a `Settle`, to answer a drain request, and to end a half-closed stream. */
const [ANSWER_MS, DRAIN_MS, CLOSE_MS] = [60_000, 5_000, 2_000];
/** Interval of the checks whether a handler blocks the event loop, and the shortest blocking that is logged. */
const [CHECK_INTERVAL_MS, MIN_BLOCK_MS] = [1_000, 2_000];
/** Limits on messages that apply if the broker's `Welcome` has none. */
const LIMITS = create(pb.LimitsSchema, { maxMessageBytes: 4n << 20n, maxSettleOutcomes: 10_000 });

const REASONS: Record<number, CancelReason> = { 1: "cancelled", 2: "timeout", 3: "lease_lost" };

/** @internal */
export class Stream {
  /** The broker's limits on messages. Until a `Welcome` has set them, no outcome may be sent. */
  limits: pb.Limits | undefined;
  /** Whether the stream has shown that the broker works, so that the backoff of reconnects starts again. */
  worked = false;
  /** Time at which to open the next stream, set when the broker drains this one. */
  reconnectAt: number | undefined;
  readonly #control: Message[] = [];
  readonly #abort = new AbortController();
  readonly #batches = new Set<Batch>();
  #wake = () => {};
  #isClosing = false;
  #failure: HowdahError | undefined;
  #isDrained = false;
  #drainRequested = false;
  #pingMs = 5_000;
  #receivedAt = performance.now();
  #checkedAt = performance.now();

  constructor(private readonly session: Session) {}

  /** Serves the stream to its end. Fails if the stream breaks. */
  async serve(link: StreamLink, quit: AbortSignal): Promise<void> {
    const watch = setInterval(() => this.#check(), CHECK_INTERVAL_MS);
    try {
      const signal = AbortSignal.any([this.#abort.signal, quit]);
      for await (const { message } of link.work(this.#outgoing(), signal)) {
        this.#receivedAt = performance.now();
        this.#receive(message);
        this.session.update();
      }
      if (!this.#isClosing && this.reconnectAt === undefined) this.#fail("the broker closed the stream");
    } catch (error) {
      if (!this.#isClosing) this.#failure ??= HowdahError.from(error, link.url.host);
    } finally {
      clearInterval(watch);
      this.#leave(false);
    }
    if (this.#failure) throw this.#failure;
  }

  send(message: Message): void {
    this.#control.push(message);
  }

  /**
   * Sends new messages, and leaves the stream when it may end. Must be called after each change of the session's state.
   */
  update(): void {
    const { isStopping, ledger } = this.session;
    if (this.limits && !this.#isClosing) {
      if (isStopping && !this.#drainRequested) {
        this.#drainRequested = true;
        this.send({ case: "drain", value: create(pb.DrainRequestSchema) });
        setTimeout(() => this.#drained(), DRAIN_MS).unref();
      }
      const isDone = this.reconnectAt !== undefined || (isStopping && this.#isDrained);
      if (isDone && ledger.isEmpty) this.#leave(true);
    }
    this.#wake();
  }

  #drained(): void {
    this.#isDrained = true;
    this.session.update();
  }

  /** Checks once a second that the broker still sends and answers, and that the event loop is not blocked. */
  #check(): void {
    const now = performance.now();
    const blockedMs = now - this.#checkedAt - CHECK_INTERVAL_MS;
    const wasBusy = blockedMs > CHECK_INTERVAL_MS;
    this.#checkedAt = now;
    if (blockedMs >= MIN_BLOCK_MS) this.session.logBlocked(blockedMs);
    // After a handler has blocked the event loop, received messages may be unread. The check would then wrongly find
    // that the broker is silent.
    if (wasBusy || this.#isClosing) return;
    if (now - this.#receivedAt > 3 * this.#pingMs)
      this.#fail("the broker is silent: no message for three ping intervals");
    const [oldest] = this.#unanswered();
    if (oldest && now - oldest.sentAt > ANSWER_MS) this.#fail("the broker has not answered a Settle message in time");
  }

  #fail(message: string): void {
    this.#failure = new HowdahError(message, Code.Unavailable, { broken: true });
    this.#abort.abort();
  }

  /** Half-closes the stream and waits until the broker ends it, or aborts the stream at once. */
  #leave(orderly: boolean): void {
    this.#isClosing = true;
    this.#wake();
    if (orderly) setTimeout(() => this.#abort.abort(), CLOSE_MS).unref();
    else this.#abort.abort();
  }

  async *#outgoing(): AsyncGenerator<pb.WorkRequest> {
    const subscribe = create(pb.SubscribeSchema, this.session.subscribe());
    yield create(pb.WorkRequestSchema, { message: { case: "subscribe", value: subscribe } });
    while (!this.#isClosing) {
      const message = this.#control.shift() ?? (this.limits && (this.#nextRequest() ?? this.#nextSettle(this.limits)));
      if (message) yield create(pb.WorkRequestSchema, { message });
      else
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
    }
  }

  #nextRequest(): Message | undefined {
    const extensions = this.session.extensions.next();
    if (extensions.length > 0) return { case: "extend", value: create(pb.ExtendSchema, { extensions }) };
    const reports = this.session.reports.next();
    if (reports.length > 0) return { case: "progress", value: create(pb.ProgressSchema, { reports }) };
    return undefined;
  }

  #nextSettle({ maxMessageBytes, maxSettleOutcomes }: pb.Limits): Message | undefined {
    const open = this.#unanswered().length;
    const { unsent } = this.session.ledger;
    if (open >= MAX_MESSAGES || (open >= EAGER_MESSAGES && unsent * SLOT_FRACTION < this.session.slots))
      return undefined;
    const maxBytes = Math.min(Number(maxMessageBytes), this.session.network.settings.maxMessageBytes) - 1024;
    const { outcomes, batch } = this.session.ledger.nextBatch(maxSettleOutcomes, maxBytes);
    if (outcomes.length === 0) return undefined;
    this.#batches.add(batch);
    return { case: "settle", value: create(pb.SettleSchema, { outcomes }) };
  }

  /** Returns the `Settle` messages with unanswered outcomes, oldest first. */
  #unanswered(): Batch[] {
    for (const batch of this.#batches) if (batch.left === 0) this.#batches.delete(batch);
    return [...this.#batches];
  }

  #receive(message: pb.WorkResponse["message"]): void {
    const { session } = this;
    switch (message.case) {
      case "welcome": {
        const { limits, pingInterval } = message.value;
        this.limits = limits ?? LIMITS;
        if (pingInterval) this.#pingMs = durationMs(pingInterval);
        session.welcome(message.value);
        break;
      }
      case "jobs":
        for (const job of message.value.jobs) session.take(job);
        break;
      case "settled":
        for (const result of message.value.results) this.worked = session.settled(result) || this.worked;
        break;
      case "extended":
        if (session.extensions.answered(message.value.results)) session.resendLater();
        break;
      case "progressed":
        if (session.reports.answered(message.value.results)) session.resendLater();
        break;
      case "cancel":
        for (const { token, reason } of message.value.jobs) session.cancelled(token, REASONS[reason] ?? "lease_lost");
        break;
      case "drain":
        this.#isDrained = true;
        this.worked = true;
        if (message.value.reconnectAfter || message.value.reason === pb.DrainReason.SHUTDOWN)
          this.#reconnect(message.value);
    }
  }

  /**
   * Sets when to open the next stream, because the broker drains this one. Until then, outcomes are settled on this
   * stream.
   */
  #reconnect({ reconnectAfter }: pb.Drain): void {
    const after = reconnectAfter ? durationMs(reconnectAfter) : 0;
    this.reconnectAt = performance.now() + after;
    setTimeout(() => this.#leave(this.session.ledger.isEmpty), after).unref();
  }
}
