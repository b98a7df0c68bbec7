/**
 * The connection of a worker's stream. A thread serves it, so that the broker's heartbeat is answered even while a
 * handler blocks the event loop of the program. The thread forwards messages as bytes, and answers the heartbeat.
 */
import { Worker } from "node:worker_threads";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { HowdahError } from "./calls.js";
import * as pb from "./gen/index.js";
import { CLIENT_NAME, type Settings } from "./settings.js";

/**
 * Source code of the thread. It is a string, because bundlers would leave out a separate file and would rewrite a
 * function.
 */
const SOURCE = `
const { parentPort, workerData } = require("node:worker_threads");
const http2 = require("node:http2");
const { origin, options, headers, keepaliveMs, connectMs, maxBytes, ping, pong } = workerData;
const post = (message, moved) => parentPort.postMessage(message, moved);
const session = http2.connect(origin, options);
let hasEnded = false;
function end(message) {
  if (hasEnded) return;
  hasEnded = true;
  post({ end: message });
}
function why({ message, code, cause }) {
  // A stream on a connection that failed has the connection's error as its cause.
  if (cause) return why(cause);
  return message && message.includes(code) ? message : [message, code].filter(Boolean).join(": ");
}
const fail = (error) => {
  end({ error: why(error) });
  session.destroy();
};
const connectTimer = setTimeout(() => fail(new Error("no connection within " + connectMs + " ms")), connectMs);
session.on("error", fail);
session.on("close", () => fail(new Error("the connection has ended")));
session.once("connect", () => {
  clearTimeout(connectTimer);
  post({ connected: true });
});
setInterval(() => {
  if (session.closed || session.connecting) return;
  const unanswered = setTimeout(() => fail(new Error("no answer to an HTTP/2 PING")), 20_000);
  session.ping((error) => error || clearTimeout(unanswered));
}, keepaliveMs);
const stream = session.request({
  ":method": "POST",
  ":path": "/howdah.v1.WorkerService/Work",
  "content-type": "application/grpc+proto",
  te: "trailers",
  ...headers,
});
function frame(bytes) {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(bytes.byteLength, 1);
  return Buffer.concat([head, bytes]);
}
const answer = frame(Buffer.from(pong));
let status = {};
stream.on("response", (header) => {
  if (header[":status"] !== 200) fail(new Error("HTTP " + header[":status"]));
  if (header["grpc-status"] !== undefined) status = header;
});
stream.on("trailers", (header) => (status = header));
stream.on("error", fail);
stream.on("close", () => {
  const text = Object.fromEntries(Object.entries(status).filter(([name]) => !name.startsWith(":")));
  end({ status: text });
});
let read = Buffer.alloc(0);
stream.on("data", (chunk) => {
  read = read.length > 0 ? Buffer.concat([read, chunk]) : chunk;
  while (read.length >= 5) {
    const length = read.readUInt32BE(1);
    if (length > maxBytes) return fail(new Error("a message of " + length + " bytes; at most " + maxBytes + " are accepted"));
    if (read.length < 5 + length) break;
    const bytes = Uint8Array.from(read.subarray(5, 5 + length));
    read = read.subarray(5 + length);
    if (Buffer.compare(bytes, ping) === 0) stream.write(answer);
    post({ message: bytes }, [bytes.buffer]);
  }
});
parentPort.on("message", ({ send }) => {
  if (hasEnded) return;
  if (send) stream.write(frame(send), () => post({ sent: true }));
  else stream.end();
});
`;

const bytesOf = (message: pb.WorkRequest["message"]) =>
  toBinary(pb.WorkRequestSchema, create(pb.WorkRequestSchema, { message }));
const PING = toBinary(
  pb.WorkResponseSchema,
  create(pb.WorkResponseSchema, { message: { case: "ping", value: create(pb.PingSchema) } }),
);
const PONG = bytesOf({ case: "pong", value: create(pb.PongSchema) });

type ThreadMessage =
  | { connected: true }
  | { sent: true }
  | { message: Uint8Array }
  | { end: { error: string } | { status: Record<string, string> } };

/** @internal A connection with one `Work` stream, served by a thread. */
export class StreamLink {
  readonly #worker: Worker;
  /**
   * Messages received from the broker. The list needs no limit: the windows bound the number of jobs, and the number of
   * unanswered requests bounds the answers.
   */
  readonly #received: pb.WorkResponse[] = [];
  readonly #connected: Promise<void>;
  #end: Error | "closed" | undefined;
  #isSent = true;
  #change: () => void = () => {};

  constructor(
    { tls, credential, keepaliveMs, connectTimeoutMs, maxMessageBytes }: Settings,
    readonly url: URL,
    store: string,
  ) {
    const { token } = credential;
    const headers = {
      ...(token !== undefined && { authorization: `Bearer ${token}` }),
      ...(store !== "" && { "howdah-store": store }),
      "user-agent": CLIENT_NAME,
    };
    // The HTTP/2 flow-control window is enlarged, because the default of 64 KiB would stall a stream of jobs at each
    // round trip.
    const options = { ...tls, settings: { initialWindowSize: 8 << 20 } };
    const workerData = {
      ...{ origin: url.origin, options, headers, keepaliveMs, connectMs: connectTimeoutMs },
      ...{ maxBytes: maxMessageBytes, ping: PING, pong: PONG },
    };
    this.#worker = new Worker(SOURCE, { eval: true, workerData, execArgv: [], name: "howdah-link" });
    this.#connected = new Promise((resolve, reject) => {
      this.#worker.on("message", (message: ThreadMessage) => {
        if ("connected" in message) resolve();
        else if ("sent" in message) this.#isSent = true;
        else if ("message" in message) this.#received.push(fromBinary(pb.WorkResponseSchema, message.message));
        else reject(this.#ends(message.end));
        this.#change();
      });
      this.#worker.on("error", (error) => {
        this.#end ??= error;
        reject(error);
        this.#change();
      });
      this.#worker.on("exit", () => {
        const error = new ConnectError("the thread of the connection has ended", Code.Unavailable);
        this.#end ??= error;
        reject(error);
        this.#change();
      });
    });
    this.#connected.catch(() => {});
  }

  /** Waits until the thread has opened the connection. */
  async ready(signal?: AbortSignal): Promise<void> {
    const stopped = new Promise<never>((_, reject) => {
      const stop = () => reject(new ConnectError("the worker stops", Code.Canceled));
      if (signal?.aborted) stop();
      signal?.addEventListener("abort", stop, { once: true });
    });
    try {
      await Promise.race([this.#connected, stopped]);
    } catch (error) {
      throw HowdahError.from(error, `cannot reach ${this.url.host}`);
    }
  }

  /** Sends the outgoing messages one at a time, and yields the messages of the broker. */
  async *work(outgoing: AsyncGenerator<pb.WorkRequest>, signal: AbortSignal): AsyncGenerator<pb.WorkResponse> {
    signal.addEventListener("abort", () => this.#change(), { once: true });
    void this.#send(outgoing);
    for (;;) {
      const message = this.#received.shift();
      if (message) yield message;
      else if (this.#end instanceof Error) throw this.#end;
      else if (this.#end || signal.aborted) return;
      else await this.#changed();
    }
  }

  close = (): void => void this.#worker.terminate();

  async #send(outgoing: AsyncGenerator<pb.WorkRequest>): Promise<void> {
    for await (const { message } of outgoing) {
      this.#isSent = false;
      this.#worker.postMessage({ send: bytesOf(message) });
      // The loop waits until the transport has taken the message, so that outcomes accumulate while the transport is
      // slow.
      while (!this.#isSent && !this.#end) await this.#changed();
      if (this.#end) return;
    }
    this.#worker.postMessage({ send: undefined });
  }

  #changed(): Promise<void> {
    const before = this.#change;
    return new Promise((resolve) => {
      this.#change = () => {
        this.#change = () => {};
        before();
        resolve();
      };
    });
  }

  /**
   * Records how the stream ended: with a status from the broker, or without one because it broke. Returns the error for
   * callers that wait for the connection.
   */
  #ends(end: { error: string } | { status: Record<string, string> }): Error {
    const error =
      "error" in end
        ? new ConnectError(end.error, Code.Unavailable)
        : end.status["grpc-status"] === undefined
          ? new ConnectError("the stream ended without a status", Code.Unavailable)
          : findTrailerError(new Headers(end.status));
    this.#end ??= error ?? "closed";
    return error ?? new ConnectError("the broker closed the stream", Code.Unavailable);
  }
}
