/** What a client is told: options, the environment, certificates and tokens. */
import { readFileSync } from "node:fs";
import type { SecureClientSessionOptions } from "node:http2";
import * as tls from "node:tls";
import { chain, invalid } from "./calls.js";

/** The version of this package. */
export const VERSION = "0.1.0";

/** Where the client logs; `console` is one. It is never given a token. */
export type Logger = Pick<Console, "debug" | "info" | "warn" | "error">;

/** Certificates for `https://` addresses, as PEM. */
export interface TlsOptions {
  /** The authorities that are trusted instead of the system's. Default: the file in `HOWDAH_TLS_CA`. */
  ca?: string | Buffer;
  /** The certificate that is shown to brokers. Default: the file in `HOWDAH_TLS_CLIENT_CERT`. */
  cert?: string | Buffer;
  /** Its private key. Default: the file in `HOWDAH_TLS_CLIENT_KEY`. */
  key?: string | Buffer;
  /** The name that the broker's certificate must have, if it is not the host of the address. */
  serverName?: string;
}

/** Settings of a client. What is not given comes from the environment, then from the defaults. */
export interface ClientOptions {
  /** Brokers of one database: `host:port`, `http://…` or `https://…`. Default: `HOWDAH_SERVER`, or `127.0.0.1:7432`. */
  servers?: string | readonly string[];
  /** The token that goes with each call. Default: `HOWDAH_TOKEN`. */
  token?: string;
  /** A file with the token. It is read again every 10 s, and when a broker refuses it. Default: `HOWDAH_TOKEN_FILE`. */
  tokenFile?: string;
  /** Sends the token over `http://` to other machines too, where everybody on the way can read it. */
  insecureToken?: boolean;
  /** Default: the system's authorities, and no certificate of the client. */
  tls?: TlsOptions;
  /** The longest time to connect, TLS included. Default: 5 s. */
  connectTimeoutMs?: number;
  /** The longest time of a call, its retries included. Default: 30 s. */
  requestTimeoutMs?: number;
  /** The interval of HTTP/2 PINGs on a connection in use. Default: 30 s. */
  keepaliveMs?: number;
  /** The largest message that is sent or accepted. Default: 16 MiB. */
  maxMessageBytes?: number;
  /** Default: warnings and errors go to the console. */
  logger?: Logger;
}

type Fixed = "connectTimeoutMs" | "requestTimeoutMs" | "keepaliveMs" | "maxMessageBytes" | "logger";

/** @internal Options with everything filled in. */
export interface Settings extends Required<Pick<ClientOptions, Fixed>> {
  addresses: URL[];
  credential: Credential;
  tls: SecureClientSessionOptions;
}

const quiet = () => {};
const DEFAULTS: Pick<Settings, Fixed> = {
  connectTimeoutMs: 5_000,
  requestTimeoutMs: 30_000,
  keepaliveMs: 30_000,
  maxMessageBytes: 16 << 20,
  logger: { debug: quiet, info: quiet, warn: console.warn, error: console.error },
};

/** @internal Without the fields that are undefined, which would take the place of defaults. */
export function defined<T extends object>(options: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as { [K in keyof T]: Exclude<T[K], undefined> };
}

/** @internal Options, the environment and the defaults as one. */
export function resolve(options: ClientOptions): Settings {
  const { HOWDAH_SERVER, HOWDAH_TOKEN, HOWDAH_TOKEN_FILE, HOWDAH_CLIENT_INSECURE } = process.env;
  const { servers = HOWDAH_SERVER || "127.0.0.1:7432", token, tokenFile, ...given } = options;
  const own = token !== undefined || tokenFile !== undefined;
  if (!own && HOWDAH_TOKEN && HOWDAH_TOKEN_FILE)
    throw invalid("token", "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set; one is enough");
  const credential = own ? new Credential(token, tokenFile) : new Credential(HOWDAH_TOKEN, HOWDAH_TOKEN_FILE);
  const insecure = options.insecureToken ?? !/^(|0|n|no|f|false|off)$/i.test(HOWDAH_CLIENT_INSECURE ?? "");
  const list = [servers].flat().flatMap((text) => text.split(","));
  const addresses = list.map((text) => address(text.trim(), credential.token !== undefined && !insecure));
  const isTls = addresses.some((url) => url.protocol === "https:");
  return { ...DEFAULTS, ...defined(given), addresses, credential, tls: isTls ? certificates(options.tls ?? {}) : {} };
}

function address(text: string, isSecret: boolean): URL {
  const full = text.includes("://") ? text : `http://${text}`;
  const url = URL.canParse(full) ? new URL(full) : undefined;
  if (!url?.hostname || !/^https?:$/.test(url.protocol))
    throw invalid("servers", `"${text}" is no address of a broker`);
  const isLocal = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname);
  if (isSecret && url.protocol === "http:" && !isLocal)
    throw invalid("servers", `${text}: everybody on the way could read the token: use https://, or set insecureToken`);
  return url;
}

function read(path: string | undefined, field: string): Buffer | undefined {
  try {
    return path ? readFileSync(path) : undefined;
  } catch (error) {
    throw invalid(field, chain(error));
  }
}

function certificates(options: TlsOptions): SecureClientSessionOptions {
  const { HOWDAH_TLS_CA, HOWDAH_TLS_CLIENT_CERT, HOWDAH_TLS_CLIENT_KEY } = process.env;
  const cert = options.cert ?? read(HOWDAH_TLS_CLIENT_CERT, "tls");
  const key = options.key ?? read(HOWDAH_TLS_CLIENT_KEY, "tls");
  // Node has a list of its own, and reads that of the system from 22.15 on.
  const system: typeof tls & { getCACertificates?: (kind: string) => string[] } = tls;
  const roots = system.getCACertificates?.("system").concat(tls.rootCertificates);
  const ca = options.ca ?? read(HOWDAH_TLS_CA, "tls") ?? roots;
  const secret = cert && key ? { cert, key } : {};
  if (!cert !== !key) throw invalid("tls", "a client certificate and its key go together");
  return { ...secret, ...(ca && { ca }), ...(options.serverName && { servername: options.serverName }) };
}

/** @internal The token: a text, or what is in a file, which somebody else may replace. */
export class Credential {
  #token: string | undefined;
  #readAt = performance.now();

  constructor(
    token: string | undefined,
    private readonly file: string | undefined,
  ) {
    this.#token = read(file, "token_file")?.toString().trim() ?? (token || undefined);
    if (this.#token !== undefined && !/^[\x21-\x7e]+$/.test(this.#token))
      throw invalid("token", "is empty, or has characters that no token has");
  }

  get token(): string | undefined {
    if (performance.now() - this.#readAt > 10_000) this.renew();
    return this.#token;
  }

  /** Reads the file again. Returns whether there is another token now. */
  renew(): boolean {
    const before = this.#token;
    this.#readAt = performance.now();
    try {
      this.#token = read(this.file, "token_file")?.toString().trim() || before;
    } catch {
      // The token from before may still hold.
    }
    return this.#token !== before;
  }
}
