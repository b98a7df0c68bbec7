/**
 * The client of Howdah, which enqueues jobs, runs them, and has the calls of operators.
 *
 * @packageDocumentation
 */
export { Code } from "@connectrpc/connect";
export { Client, type EnqueueOptions, type Enqueuer, type WaitOptions } from "./client.js";
export { HowdahError, LeaseLostError } from "./calls.js";
export type { Duration } from "./duration.js";
export type { Broker, Handler, Job, Middleware, Settled } from "./handler.js";
export * as proto from "./gen/index.js";
export {
  bytesTask,
  type Enqueued,
  type EnqueueJobOptions,
  fromJsonBytes,
  type JobOptions,
  jsonTask,
  type Name,
  newJob,
  protobufTask,
  type RetryPolicyOptions,
  type Task,
} from "./job.js";
export {
  CancelledError,
  type CancelReason,
  FatalError,
  nextStage,
  type Outcome,
  RetryError,
  release,
  snooze,
} from "./outcome.js";
export type {
  JobConditions,
  JobFilter,
  JobSearch,
  JobSelection,
  Retried,
  RetryOptions,
  ScheduleOptions,
  TaskTypeOptions,
} from "./operations.js";
export { Producer, type ProducerOptions } from "./producer.js";
export type { Progress, WorkerReport } from "./session.js";
export { type RunOptions, Worker, type WorkerOptions } from "./worker.js";
export type { ClientOptions, Logger, TlsOptions } from "./settings.js";
