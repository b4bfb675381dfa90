// A shape and a word for each state that the protocol names. The server has the words for its reasons.
import { REASONS } from "./reasons.js";

const OUTCOMES = {
  COMPLETED: ["done", "done"],
  HANDLER_FAILED: ["fail", "failed"],
  WORKER_CRASHED: ["fail", "crashed"],
  WORKER_LOST: ["fail", "worker lost"],
  HANDLER_PANICKED: ["fail", "panicked"],
  HANDLER_UNAVAILABLE: ["fail", "no handler"],
  OUTPUT_TOO_LARGE: ["fail", "output too large"],
  RUN_TIMEOUT: ["late", "ran too long"],
  EXPIRED_IN_QUEUE: ["late", "too late to start"],
  CANCELLED: ["cut", "caller left"],
  CANCELLED_BY_OPERATOR: ["cut", "cancelled here"],
  DRAIN_KILLED: ["cut", "stopped by drain"],
  SHED: ["cut", "dropped for others"],
  REPLACED: ["cut", "replaced"],
};
/** How a job ended. */
export const ended = (outcome) => OUTCOMES[outcome] ?? ["fail", reason(outcome)];

/** A reason of the server, in its words. */
export const reason = (name) => REASONS[name] ?? name.toLowerCase().replaceAll("_", " ");

export const STAGES = {
  JOB_STAGE_WAITING: ["wait", "waits outside"],
  JOB_STAGE_QUEUED: ["wait", "queued"],
  JOB_STAGE_RUNNING: ["run", "running"],
  JOB_STAGE_COMPLETED: ["done", "done"],
  JOB_STAGE_FAILED: ["fail", "failed"],
  JOB_STAGE_STORED: ["wait", "stored"],
};

export const STATES = {
  JOB_STATE_SCHEDULED: ["later", "scheduled"],
  JOB_STATE_READY: ["wait", "ready"],
  JOB_STATE_BLOCKED: ["held", "behind another"],
  JOB_STATE_RUNNING: ["run", "running"],
  JOB_STATE_SUCCEEDED: ["done", "done"],
  JOB_STATE_FAILED: ["fail", "failed for good"],
  JOB_STATE_CANCELLED: ["cut", "cancelled"],
  JOB_STATE_EXPIRED: ["late", "expired"],
};

const PHASES = {
  PHASE_STARTING: ["wait", "starting"],
  PHASE_SERVING: ["run", "serving"],
  PHASE_DRAINING: ["stop", "draining"],
  PHASE_STOPPING: ["stop", "stopping"],
  PHASE_STOPPED: ["cut", "stopped"],
};
/** What a pool does. */
export const phase = ({ phase: now, paused }) =>
  paused == null ? (PHASES[now] ?? ["wait", "unknown"]) : ["pause", "paused"];

export const PROCESSES = {
  PROCESS_STATE_STARTING: ["later", "starting"],
  PROCESS_STATE_IDLE: ["wait", "idle"],
  PROCESS_STATE_BUSY: ["run", "busy"],
  PROCESS_STATE_LEAVING: ["stop", "leaving"],
  PROCESS_STATE_FAILING: ["fail", "fails to start"],
};

/** What a job waits for. */
export const BINDINGS = {
  BINDING_ROOM: "the queue is full, so its caller waits outside",
  BINDING_WORKERS: "all workers are busy",
  BINDING_NO_WORKER: "no worker is attached",
  BINDING_TENANTS: "other tenants go first, which had less of the workers' time",
  BINDING_ORDERING_KEY: "a job with the same ordering key is before it",
  BINDING_LIMIT_CONCURRENCY: "its kind already runs as many jobs at once as its limit allows",
  BINDING_LIMIT_RATE: "its kind starts as many jobs a second as its limit allows",
  BINDING_LIMIT_KEY_CONCURRENCY: "its limit key already runs as many jobs at once as it may",
  BINDING_LIMIT_KEY_RATE: "its limit key starts as many jobs a second as it may",
  BINDING_LIMIT_HOLD: "its kind is held by its handler for a time",
  BINDING_LIMIT_KEY_HOLD: "its limit key is held by its handler for a time",
  BINDING_PROGRAM: "the processes of its program keep ending",
  BINDING_PAUSE: "its pool is paused",
  BINDING_START_TIME: "its start time has not come",
  BINDING_KIND: "no pool of this server has its kind",
  BINDING_DRAIN: "its pool drains, and starts no more jobs",
  BINDING_STORE: "the store takes no changes",
  BINDING_OTHER_SERVER: "another server has taken it",
};

/** How far a stop went. */
export const RUNGS = [
  ["asked", "Asked to stop", "programs get SIGTERM"],
  ["yielded", "Stopped by itself", "within its grace"],
  ["forced", "Forced", "programs get SIGKILL"],
  ["stuck", "Stuck", "its worker is replaced"],
];
