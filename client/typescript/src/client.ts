/** The client: enqueues jobs, makes producers and workers, and has the generated clients. */
import { setTimeout as sleep } from "node:timers/promises";
import {
  type CallOptions,
  Code,
  createClient,
  type Client as ServiceClient,
  type Transport,
} from "@connectrpc/connect";
import { newRequestKey } from "./batch.js";
import { Backoff, HowdahError, noting, repeating } from "./calls.js";
import * as pb from "./gen/index.js";
import type { Broker, Middleware } from "./handler.js";
import { duration, type JobOptions, type Name, newJob, type Task } from "./job.js";
import { Network } from "./network.js";
import { Producer, type ProducerOptions } from "./producer.js";
import { type ClientOptions, resolve } from "./settings.js";
import { Worker, type WorkerOptions } from "./worker.js";

/** What an enqueue did with a job. */
export interface Enqueued {
  /** The id of the new job, or of the job that holds its key. */
  id: bigint;
  /** False if the job's key, or the caller's request key, found an existing job. */
  isNew: boolean;
  /** Such as `new`, `kept` or `replaced`. */
  outcome: Name<typeof pb.EnqueueOutcome>;
}

/** Settings of an enqueue. */
export interface EnqueueOptions extends Pick<CallOptions, "signal" | "timeoutMs"> {
  /** Makes it safe to repeat the call for 24 hours, from anywhere. Default: a new one, for the retries of this call. */
  requestKey?: string;
}

/** Where code enqueues jobs: a {@link Client}, or a `RecordingClient` in its tests. */
export type Enqueuer = Pick<Client, "enqueue" | "enqueueAll">;

/** A client of one or several brokers of one database. Keep it, and share it. */
export class Client {
  /** The generated client for jobs. As the others, it uses the connections, the token, deadlines and retries of this one. */
  readonly jobs: ServiceClient<typeof pb.JobService>;
  /** The generated client for task types and limit keys. */
  readonly taskTypes: ServiceClient<typeof pb.TaskTypeService>;
  /** The generated client for schedules. */
  readonly schedules: ServiceClient<typeof pb.ScheduleService>;
  /** The generated client for the settings of the cluster. */
  readonly settings: ServiceClient<typeof pb.SettingsService>;
  /** The generated client for tokens and the audit. */
  readonly access: ServiceClient<typeof pb.AccessService>;
  /** The generated client for bulk operations. */
  readonly bulks: ServiceClient<typeof pb.BulkService>;
  /** The generated client for workers without a stream. */
  readonly workers: ServiceClient<typeof pb.WorkerService>;
  /** The generated client for the stores of the broker. */
  readonly stores: ServiceClient<typeof pb.StoreService>;
  /** What they use, for any other service. */
  readonly transport: Transport;
  readonly #network: Network;
  readonly #middleware: Middleware[];

  /** Connects at the first use, so that the broker may start later than this program. */
  constructor(options?: ClientOptions | string);
  /** @internal */
  constructor(network: Network, middleware: Middleware[]);
  constructor(options: ClientOptions | string | Network = {}, middleware: Middleware[] = []) {
    const named = typeof options === "string" ? { servers: options } : options;
    this.#network = named instanceof Network ? named : new Network(resolve(named));
    this.#middleware = middleware;
    this.transport = repeating(this.#network);
    this.jobs = createClient(pb.JobService, this.transport);
    this.taskTypes = createClient(pb.TaskTypeService, this.transport);
    this.schedules = createClient(pb.ScheduleService, this.transport);
    this.settings = createClient(pb.SettingsService, this.transport);
    this.access = createClient(pb.AccessService, this.transport);
    this.bulks = createClient(pb.BulkService, this.transport);
    this.workers = createClient(pb.WorkerService, this.transport);
    this.stores = createClient(pb.StoreService, this.transport);
  }

  /** Connects to the first broker that answers. */
  static async connect(options: ClientOptions | string = {}): Promise<Client> {
    const client = new Client(options);
    try {
      await client.#network.connect();
      return client;
    } catch (error) {
      await client.close();
      throw error;
    }
  }

  /**
   * The same client for one store of a broker that serves several: its calls are about that store alone, and its jobs go
   * there. It shares the connections and the middleware of this one, so only one of them is closed. Workers get jobs from
   * all stores, whatever this is.
   */
  inStore(name: string): Client {
    return new Client(this.#network.inStore(name), this.#middleware);
  }

  /** Adds code around each enqueue, and around each handler of workers that are made from now on. */
  use(middleware: Middleware): this {
    this.#middleware.push(middleware);
    return this;
  }

  /** Enqueues a job. When this resolves, the job is committed. See {@link enqueueAll}. */
  async enqueue<P>(task: string | Task<P>, payload?: P, options?: JobOptions): Promise<Enqueued> {
    const [first] = await this.enqueueAll([newJob(task, payload, options)]);
    return first as Enqueued;
  }

  /**
   * Enqueues up to 10,000 jobs of {@link newJob} in one transaction: all of them or none. While no broker answers, it
   * tries again until its timeout, and nothing is enqueued twice.
   */
  async enqueueAll(jobs: pb.NewJob[], { requestKey, ...call }: EnqueueOptions = {}): Promise<Enqueued[]> {
    if (jobs.length === 0) return [];
    const key = requestKey ?? newRequestKey();
    const used = { url: this.#network.url(this.#network.current) };
    const options = { ...call, contextValues: noting(used) };
    const send = async (jobs: pb.NewJob[]) => (await this.jobs.enqueueJobs({ jobs, requestKey: key }, options)).jobs;
    const answers = await this.around(jobs, send, used, requestKey);
    return answers.map((answer, index) => enqueued(answer, requestKey === undefined && jobs[index]?.key === ""));
  }

  /** @internal Runs the middleware of enqueues. */
  around(
    jobs: pb.NewJob[],
    send: (jobs: pb.NewJob[]) => Promise<pb.EnqueuedJob[]>,
    broker: Broker,
    requestKey?: string,
  ): Promise<pb.EnqueuedJob[]> {
    if (!this.#middleware.some(({ enqueue }) => enqueue)) return send(jobs);
    const own = jobs.map((job) => ({ ...job, headers: { ...job.headers } }));
    const add = (next: () => Promise<pb.EnqueuedJob[]>, { enqueue }: Middleware) =>
      enqueue ? async () => enqueue(own, next, requestKey, broker) : next;
    return this.#middleware.reduceRight(add, () => send(own))();
  }

  /** Enqueues many jobs over one stream. Keep it: each call of this method opens another stream. */
  producer(options: ProducerOptions = {}): Producer {
    return new Producer(this, this.#network, options);
  }

  /** A worker, with a stream of its own. */
  worker(options: WorkerOptions = {}): Worker {
    return new Worker(this.#network, this.#middleware, options);
  }

  /** Yields each of the jobs once, with its result, as soon as it is finished or dead. Fails after `timeoutMs` (1 minute). */
  async *wait(
    ids: Iterable<bigint>,
    options: { timeoutMs?: number; signal?: AbortSignal } = {},
  ): AsyncGenerator<pb.Job> {
    const left = new Set(ids);
    const deadline = performance.now() + (options.timeoutMs ?? 60_000);
    const backoff = new Backoff();
    // Who leaves the loop early ends the call, too.
    const done = new AbortController();
    const signal = AbortSignal.any([done.signal, ...(options.signal ? [options.signal] : [])]);
    try {
      while (left.size > 0) {
        const timeout = duration(Math.max(0, deadline - performance.now()));
        try {
          for await (const { job } of this.jobs.waitJobs({ ids: [...left], timeout }, { signal }))
            if (job && left.delete(job.id)) yield job;
          return;
        } catch (error) {
          const pause = backoff.next();
          const passes = error instanceof HowdahError && (error.broken || error.code === Code.Unavailable);
          if (!passes || performance.now() + pause > deadline) throw error;
          await sleep(pause, undefined, { signal });
        }
      }
    } finally {
      done.abort();
    }
  }

  /** One job, with payload, result and failures. */
  async getJob(id: bigint): Promise<pb.Job> {
    return (await this.jobs.getJob({ id })).job as pb.Job;
  }

  /** Cancels jobs that are not finished. Returns the ids of those that it cancelled. */
  async cancelJobs(...ids: bigint[]): Promise<bigint[]> {
    return (await this.jobs.cancelJobs({ ids })).cancelledIds;
  }

  /** Makes dead and scheduled jobs run now. Returns the ids of those that will. */
  async retryJobs(...ids: bigint[]): Promise<bigint[]> {
    return (await this.jobs.retryJobs({ filter: { ids } })).retriedIds;
  }

  /** Closes the connections. Stop workers and close producers before. */
  async close(): Promise<void> {
    this.#network.close();
  }

  [Symbol.asyncDispose] = () => this.close();
}

/** @internal A job without a key that the broker already had was stored by an earlier try of this same call. */
export function enqueued({ id, isNew, outcome }: pb.EnqueuedJob, byThisCall: boolean): Enqueued {
  if (byThisCall) return { id, isNew: true, outcome: "new" };
  return { id, isNew, outcome: (pb.EnqueueOutcome[outcome] ?? "new").toLowerCase() as Enqueued["outcome"] };
}
