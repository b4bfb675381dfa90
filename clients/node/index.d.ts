// All times are in milliseconds.
/// <reference types="node" />

/** What a job is given: bytes, a text (`text/plain`), or what JSON can say (`application/json`). */
export type Payload = Uint8Array | ArrayBuffer | string | object | null | undefined;

export interface ConnectionOptions {
  /** Sent with each call, also over plaintext: a text, or a function that is asked for each call. */
  token?: string | (() => string | Promise<string>);
  /** TLS: roots, and the certificate and key of the client, in PEM. */
  ca?: string | Buffer;
  cert?: string | Buffer;
  key?: string | Buffer;
  /** TLS with the roots of the system; also by `https://`. */
  tls?: boolean;
  /** Name of the server in TLS and in its calls, if the address has another one. */
  authority?: string;
  /** Further options of a channel of grpc-js. */
  channel?: Record<string, unknown>;
}

export interface ClientOptions extends ConnectionOptions {
  /** For a proxy that balances calls: the client does neither that nor health checks. */
  behindProxy?: boolean;
  /** Whether refused calls are made again; true by default. */
  resend?: boolean;
}

export interface JobFields {
  contentType?: string;
  runTimeout?: number;
  queueTimeout?: number;
  criticality?: "sheddable" | "sheddable-plus" | "critical" | "critical-plus";
  whenFull?: "reject" | "wait" | "shed" | "drop-oldest";
  tenant?: string;
  orderingKey?: string;
  limitKey?: string;
  labels?: Record<string, string>;
}

export interface CallOptions {
  /** Of all tries together; 30 s by default. */
  timeout?: number;
  /** Whether refused calls are made again. */
  resend?: boolean;
  /** Cancels the call. */
  signal?: AbortSignal;
}

export interface SubmitOptions extends CallOptions, JobFields {
  /** Whether the job may run twice: it is sent again, twice at most, where it is unknown whether it ran. */
  idempotent?: boolean;
  requestId?: string;
}

export interface Result {
  readonly output: Buffer;
  readonly contentType: string;
  readonly jobId: string;
  /** Where the budget went, in seconds; absent for detached jobs. */
  readonly waterfall: {
    budgetSeconds: number;
    queueSeconds: number;
    runSeconds: number;
    leftSeconds: number;
    worker: number;
  } | null;
  readonly text: string;
  json(): any;
}

export interface Progress {
  fraction: number;
  message: string;
}

/** The pieces of an output, as they are made. A loop that ends early cancels the job. */
export interface Stream extends AsyncIterable<Buffer> {
  /** The last progress. */
  readonly progress: Progress | null;
  /** The end of the job, without its output. */
  readonly result: Result | null;
}

export interface Job extends JobFields {
  kind: string;
  payload?: Payload;
  idempotent?: boolean;
}

export type Outcome<J extends Job = Job> =
  | { job: J; result: Result; error?: undefined }
  | { job: J; error: Error; result?: undefined };

export interface CreateOptions extends CallOptions, JobFields {
  /** The same id is the same job. Without one, the client makes one. */
  id?: string;
  delay?: number;
  expireIn?: number;
  retainFor?: number;
  retry?: { attempts?: number; initial?: number; max?: number };
}

/** A job that outlives its calls. All calls about it are made again, because they may be made twice. */
export interface Detached {
  readonly id: string;
  /** An earlier call had created it. */
  readonly alreadyExisted: boolean;
  /** Its result; rejects if it has none, and by a `TimeoutError` if the job has not ended: it goes on. */
  wait(options?: { timeout?: number; signal?: AbortSignal }): Promise<Result>;
  /** Its state after that: `JOB_STATE_RUNNING` if it was asked to stop. */
  cancel(options?: CallOptions & { reason?: string }): Promise<string>;
  retry(options?: CallOptions & { reason?: string }): Promise<void>;
  /** The message `DetachedJob` of the contract. */
  get(options?: CallOptions): Promise<any>;
  /** The messages `WatchJobResponse` of the contract, to the end of the job. */
  watch(options?: { signal?: AbortSignal }): AsyncIterable<any>;
}

export class Client {
  /** HOST:PORT, https://HOST:PORT or unix:PATH; by default WATERWHEEL_SERVER, or 127.0.0.1:7070. */
  constructor(address?: string, options?: ClientOptions);
  submit(kind: string, payload?: Payload, options?: SubmitOptions): Promise<Result>;
  stream(kind: string, payload?: Payload, options?: SubmitOptions & { onProgress?: (its: Progress) => void }): Stream;
  /**
   * Takes jobs as fast as they run, at most `atOnce` (256) ahead. What is refused is sent again; if the call breaks,
   * another one goes on. The timeout is that of all: a job that was not sent by then is `Missed`, and has not started.
   * Without one, each job has 30 s.
   */
  submitMany<J extends Job>(
    jobs: Iterable<J> | AsyncIterable<J>,
    options?: { timeout?: number; atOnce?: number; resend?: boolean },
  ): AsyncGenerator<Outcome<J>>;
  create(kind: string, payload?: Payload, options?: CreateOptions): Promise<Detached>;
  /** A job that was created before. */
  job(id: string): Detached;
  close(): void;
}

/** Its `message` has the reason, the text and what to do. */
export class JobError extends Error {
  /** The text alone: of the server, or of the handler. */
  readonly details: string;
  /** What to do, in one line; empty if the server does not say it. */
  readonly help: string;
  /** Name of the code of gRPC. */
  readonly code: string;
  /** A row of the table in docs/calling.md; UNREACHABLE if no server was reached, or else the code. */
  readonly reason: string;
  readonly metadata: Record<string, string>;
  readonly jobId: string;
  readonly retryAfter?: number;
  /** Undefined: nobody knows. */
  readonly started?: boolean;
}
/** It did not start: sending it again is safe. */
export class Refused extends JobError {}
/** It did not end in time. */
export class Missed extends JobError {}
/** The server, its worker or the connection went away. */
export class Lost extends JobError {}
/** The handler said no; handlers throw it. */
export class Failed extends JobError {
  constructor(code: string, details: string, fields?: { retryable?: boolean });
  readonly retryable?: boolean;
  /** What a program of `exec` printed last on standard error. */
  readonly stderr: string;
}

/**
 * Not now: a handler that throws `new Later(30_000)` lets the job be tried again after that time, of an hour at most; null
 * leaves it to the kind.
 */
export class Later extends Failed {
  constructor(
    after: number | null,
    message?: string,
    options?: {
      /** What starts no job until then: this one, those with its limit key, or those of its kind. */
      scope?: "job" | "limit-key" | "kind";
      /** If false, a detached job has as many attempts left as before. */
      counts?: boolean;
      /** UNAVAILABLE by default. */
      code?: string;
    },
  );
  readonly scope: string;
  readonly counts: boolean;
}

/** A job that runs. */
export interface RunningJob {
  readonly id: string;
  readonly jobId: string;
  readonly kind: string;
  readonly payload: Buffer;
  readonly contentType: string;
  readonly labels: Record<string, string>;
  readonly attempt: number;
  readonly tenant: string;
  readonly requestId: string;
  readonly traceparent: string;
  /** Id of a detached job, the same for each attempt; the token also names the attempt. */
  readonly idempotencyKey: string;
  readonly token: string;
  readonly text: string;
  json(): any;
  /** Milliseconds that are left. */
  readonly budget: number;
  /** Whether it is to stop, and why, such as DEADLINE. The signal stops what takes one. */
  readonly cancelled: boolean;
  readonly reason: string;
  readonly signal: AbortSignal;
  /** Sends a piece of the result now. It waits for a slow caller. */
  output(piece: Payload): Promise<void>;
  progress(fraction: number, message?: string): void;
  /** Writes to standard error, with the ids of the job and its call. */
  log(...all: unknown[]): void;
}

/** A result with its media type. */
export class Output {
  constructor(data: Payload, contentType?: string);
  readonly data: Payload;
  readonly contentType?: string;
}

type Value = Payload | Output;
/** A generator gives pieces of the output. */
export type Returned = Value | Iterator<Payload> | AsyncIterator<Payload>;

export interface RunOptions extends ConnectionOptions {
  /** Name and version, for people. */
  name?: string;
  /** Jobs at once over all servers; 4 by default, or the largest batch. A child has `jobs_per_process`. */
  slots?: number;
  /** Where to attach; by default WATERWHEEL_ADDRESS, with commas. */
  address?: string | string[];
  /** Lets it leave, as SIGTERM does. */
  signal?: AbortSignal;
}

export interface Tested {
  output: Buffer;
  pieces: Buffer[];
  progress: Progress[];
  contentType: string;
}

export class Worker {
  /** Handlers share one thread with the connection: what computes for long belongs in `node:worker_threads`. */
  kind<H extends (job: RunningJob) => Returned | Promise<Returned>>(
    name: string,
    handler: H,
    options?: { contentType?: string },
  ): H;
  /** Runs up to `max` (32) jobs together, one batch at a time. Returns one result or error for each. */
  batch<H extends (jobs: RunningJob[]) => (Value | Error)[] | Promise<(Value | Error)[]>>(
    name: string,
    options: { max?: number; contentType?: string },
    handler: H,
  ): H;
  /** Serves as a child until its process ends; or attached, until SIGTERM and its last answer. */
  run(options?: RunOptions): Promise<void>;
  /** Runs one job without a server; rejects with Failed. */
  test(
    payload?: Payload,
    options?: {
      kind?: string;
      labels?: Record<string, string>;
      contentType?: string;
      budget?: number;
      cancelAfter?: number;
      attempt?: number;
      tenant?: string;
    },
  ): Promise<Tested>;
}

/** The worker of programs that have one. */
export const worker: Worker;
