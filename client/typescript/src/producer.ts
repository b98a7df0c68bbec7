/** Enqueues many jobs over one stream, in batches. */
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { Code, createClient } from "@connectrpc/connect";
import { type Batch, bytesOf, cost, jobsOf, newBatch, fromRequestError, type Submission, split } from "./batch.js";
import { Backoff, HowdahError, recordBroker, TOO_LARGE } from "./calls.js";
import type { Client } from "./client.js";
import * as pb from "./gen/index.js";
import { checkOptions, type Kinds } from "./given.js";
import { checkJobs, type Enqueued, enqueued, type JobOptions, newJob, type Task } from "./job.js";
import type { Link, Network } from "./network.js";
import { defined } from "./settings.js";

/** Limits of a {@link Producer}. */
export interface ProducerOptions {
  /** Maximum number of unanswered requests. Default: 4. */
  maxInFlight?: number;
  /** Maximum number of jobs per request. Jobs of one call stay together. Default: 1,000. */
  maxBatchJobs?: number;
  /** Maximum bytes of a request with the jobs of more than one call. Default: 4 MiB. */
  maxBatchBytes?: number;
  /** Number of bytes queued and in flight from which {@link Producer.ready} waits (backpressure). Default: 64 MiB. */
  maxQueuedBytes?: number;
}

/**
 * Limit in bytes for resending the unanswered requests of a broken stream on the next stream. Above it, they are resent
 * by unary calls.
 */
const RESEND_LIMIT = 4 << 10;
/** Time without an answer after which a stream counts as broken. Without Postgres, a broker answers within 15 s. */
const ANSWER_MS = 16_000;
const PRODUCER_OPTIONS: Kinds<ProducerOptions> = {
  ...{ maxInFlight: "count", maxBatchJobs: "count", maxBatchBytes: "count", maxQueuedBytes: "count" },
};
const DEFAULTS = { maxInFlight: 4, maxBatchJobs: 1_000, maxBatchBytes: 4 << 20, maxQueuedBytes: 64 << 20 };

/**
 * Enqueues over one stream; created by {@link Client.producer}. Await {@link ready} before each enqueue to bound the
 * memory. Jobs that arrive while requests are in flight form the next request. If the broker refuses a job, only the
 * `enqueue` or `enqueueAll` call with that job fails.
 */
export class Producer {
  readonly #limits: Required<ProducerOptions>;
  readonly #broker: { url: URL };
  readonly #queue: Submission[] = [];
  readonly #retries: Batch[] = [];
  readonly #sent = new Map<bigint, Batch>();
  readonly #backoff = new Backoff();
  readonly #waiting: (() => void)[] = [];
  #bytes = 0;
  #open = 0;
  #sequence = 0n;
  #pausedUntil = 0;
  #failure: Error | undefined;
  #isClosed = false;
  #running = Promise.resolve();
  #isRunning = false;
  #wake = () => {};

  /** @internal */
  constructor(
    private readonly client: Client,
    private readonly network: Network,
    options: ProducerOptions,
  ) {
    checkOptions(options, PRODUCER_OPTIONS, "an option of a producer");
    this.#broker = { url: network.url(network.current) };
    this.#limits = { ...DEFAULTS, ...defined(options) };
  }

  /** Waits while the queue is full. */
  async ready(): Promise<void> {
    while (this.#bytes >= this.#limits.maxQueuedBytes)
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  /** Enqueues a job. When this resolves, the job is committed. */
  enqueue<P>(task: string | Task<P>, payload?: P, options?: JobOptions): Promise<Enqueued> {
    const answer = this.#enqueue(() => [newJob(task, payload, options)]).then(([first]) => first as Enqueued);
    answer.catch(() => {});
    return answer;
  }

  /** Enqueues several jobs: all of them or none. */
  enqueueAll(jobs: pb.NewJob[]): Promise<Enqueued[]> {
    return this.#enqueue(() => {
      checkJobs(jobs);
      return jobs;
    });
  }

  #enqueue(make: () => pb.NewJob[]): Promise<Enqueued[]> {
    const submit = async () => {
      const jobs = this.#made(make);
      const answers = await this.client.around(jobs, (copies) => this.#submit(copies), this.#broker);
      return answers.map((answer, index) => enqueued(answer, jobs[index]?.key === ""));
    };
    const answer = submit();
    answer.catch(() => {});
    return answer;
  }

  /** Makes the jobs of an enqueue. `flush` also reports the error of a job that is never sent. */
  #made(make: () => pb.NewJob[]): pb.NewJob[] {
    try {
      return make();
    } catch (error) {
      this.#failure ??= error as Error;
      throw error;
    }
  }

  /** Waits until all jobs are answered. Fails if an enqueue has failed since the last flush. */
  async flush(): Promise<void> {
    while (this.#open > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    const failure = this.#failure;
    this.#failure = undefined;
    if (failure) throw failure;
  }

  /** Flushes, and closes the stream. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.flush().finally(() => {
      this.#wake();
      return this.#running;
    });
  }

  [Symbol.asyncDispose] = () => this.close();

  async #submit(jobs: pb.NewJob[]): Promise<pb.EnqueuedJob[]> {
    if (this.#isClosed) throw new HowdahError("the producer is closed", Code.Canceled);
    const bytes = jobs.reduce((sum, job) => sum + cost(job), 0);
    const { requestTimeoutMs } = this.network.settings;
    const submission: Submission = { jobs, bytes, isDone: false, resolve: () => {}, reject: () => {} };
    const answer = new Promise<pb.EnqueuedJob[]>((resolve, reject) => Object.assign(submission, { resolve, reject }));
    // `flush` reports the first failure, because some callers do not await the answer of an enqueue.
    answer.catch((error: Error) => {
      this.#failure ??= error;
    });
    const timedOut = () => new HowdahError(`enqueue: no answer within ${requestTimeoutMs} ms`, Code.DeadlineExceeded);
    const timer = setTimeout(() => submission.reject(timedOut()), requestTimeoutMs);
    this.#queue.push(submission);
    this.#bytes += bytes;
    this.#open++;
    this.#start();
    return answer.finally(() => {
      clearTimeout(timer);
      submission.isDone = true;
      this.#bytes -= bytes;
      this.#open--;
      for (const resolve of this.#waiting.splice(0)) resolve();
    });
  }

  #start(): void {
    this.#wake();
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#running = this.#run().finally(() => {
      this.#isRunning = false;
      // A job may have been submitted after the task's last check for work. Then the task starts again.
      if (this.#open > 0) this.#start();
    });
  }

  async #run(): Promise<void> {
    for (let broker = this.network.current; this.#open > 0; broker++) {
      let link: Link | undefined;
      this.#broker.url = this.network.url(broker);
      try {
        link = await this.network.dial(broker);
        await this.#serve(link);
      } catch (thrown) {
        const error = HowdahError.from(thrown, this.network.name(broker));
        const unanswered = [...this.#sent.values()].reduce((sum, batch) => sum + bytesOf(batch), 0);
        this.#retries.unshift(...this.#sent.values());
        this.#sent.clear();
        // Single calls show the cause. The broker may refuse one request, or the whole stream. Or a proxy limits the
        // bytes of a stream; then a single call succeeds, or fails with HTTP 413.
        if (error.refused || unanswered > RESEND_LIMIT) await this.#callEach();
        else if (this.#open > 0) await sleep(this.#backoff.next());
      } finally {
        link?.close();
      }
    }
  }

  async #serve(link: Link): Promise<void> {
    const abort = new AbortController();
    const timeoutMs = Math.min(ANSWER_MS, this.network.settings.requestTimeoutMs / this.network.size);
    const watch = setInterval(() => {
      const [oldest] = this.#sent.values();
      if (oldest && performance.now() - oldest.sentAt > timeoutMs) abort.abort();
    }, 1_000);
    try {
      const jobs = createClient(pb.JobService, link.transport);
      const answers = jobs.streamEnqueue(this.#requests(abort.signal), { signal: abort.signal });
      for await (const { sequence, jobs, error } of answers) {
        const batch = this.#sent.get(sequence);
        this.#sent.delete(sequence);
        if (batch) this.#conclude(batch, error ? fromRequestError(error) : jobs);
        this.#wake();
      }
    } finally {
      clearInterval(watch);
      abort.abort();
      this.#wake();
    }
    if (!this.#isClosed) throw new HowdahError("the broker closed the stream", Code.Unavailable, { broken: true });
  }

  async *#requests(ended: AbortSignal): AsyncGenerator<pb.StreamEnqueueRequest> {
    while (!ended.aborted && !(this.#isClosed && this.#open === 0)) {
      const batch = this.#sent.size < this.#limits.maxInFlight ? this.#next() : undefined;
      if (!batch) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        continue;
      }
      const sequence = ++this.#sequence;
      batch.sentAt = performance.now();
      this.#sent.set(sequence, batch);
      yield create(pb.StreamEnqueueRequestSchema, {
        sequence,
        jobs: jobsOf(batch),
        requestKey: batch.requestKey,
      });
    }
  }

  /** Takes the next request: one to resend, or else as many queued submissions as fit into one request, in order. */
  #next(): Batch | undefined {
    while (this.#retries.length > 0 && performance.now() >= this.#pausedUntil) {
      const batch = this.#retries.shift();
      if (batch?.submissions.some((submission) => !submission.isDone)) return batch;
    }
    const { maxBatchJobs, maxBatchBytes } = this.#limits;
    let [jobs, bytes, count] = [0, 0, 0];
    for (const submission of this.#queue) {
      jobs += submission.jobs.length;
      bytes += submission.bytes;
      if (count > 0 && (jobs > maxBatchJobs || bytes > maxBatchBytes)) break;
      count++;
    }
    const submissions = this.#queue.splice(0, count).filter((submission) => !submission.isDone);
    return submissions.length > 0 ? newBatch(submissions) : undefined;
  }

  async #callEach(): Promise<void> {
    for (let batch = this.#next(); batch; batch = this.#retries.length > 0 ? this.#next() : undefined) {
      const request = { jobs: jobsOf(batch), requestKey: batch.requestKey };
      const result = await this.client.jobs.enqueueJobs(request, { contextValues: recordBroker(this.#broker) }).then(
        ({ jobs }) => jobs,
        (error) => error as HowdahError,
      );
      this.#conclude(batch, result);
    }
  }

  #conclude(batch: Batch, result: pb.EnqueuedJob[] | HowdahError): void {
    if (Array.isArray(result)) {
      this.#backoff.reset();
      const answers = [...result];
      for (const submission of batch.submissions) submission.resolve(answers.splice(0, submission.jobs.length));
    } else if (result.retryable && result.retryAfterMs === undefined) {
      const pause = this.#backoff.next();
      this.#pausedUntil = performance.now() + pause;
      this.#retries.push(batch);
      setTimeout(() => this.#wake(), pause + 1);
    } else {
      if (result.reason === TOO_LARGE) this.#limits.maxBatchBytes = bytesOf(batch) / 2;
      this.#retries.unshift(...split(batch, result));
    }
  }
}
