// Many jobs on one call, and on another one if it breaks.
"use strict";

const { Lost, ofCall, ofFailure } = require("./errors.js");

// The calls: the one that the next job is sent on, and others that have not answered all of theirs.
class Many {
  #open;
  #target;
  #calls = new Set();
  #present = null;
  #number = 0;
  #isClosed = false;

  constructor(open, target) {
    this.#open = open;
    this.#target = target;
  }

  // Sends a job, and resolves with its result.
  async submit(job) {
    const its = await (this.#present ??= this.#begin());
    if (this.#isClosed) {
      its.call.cancel();
      throw new Lost("nobody waits for it any more");
    }
    if (its.isLeft) return this.submit(job);
    const tag = String(++this.#number);
    const answer = new Promise((resolve, reject) => its.waiting.set(tag, { resolve, reject }));
    its.call.write({ tag, job });
    return answer;
  }

  async #begin() {
    const its = { waiting: new Map(), isLeft: false };
    its.call = await this.#open().catch((error) => {
      this.#present = null;
      throw error;
    });
    const end = (failure) => {
      this.#leave(its);
      this.#calls.delete(its);
      for (const { reject } of its.waiting.values()) reject(failure);
    };
    its.call.on("data", ({ tag, result, failure }) => {
      const { resolve, reject } = its.waiting.get(tag);
      its.waiting.delete(tag);
      if (result) return resolve(result);
      const error = ofFailure(failure);
      // Another server may be there.
      if (error.code === "UNAVAILABLE" && error.started === false) this.#leave(its);
      reject(error);
    });
    its.call.on("error", (error) => end(ofCall(error, its.call, this.#target)));
    its.call.on("end", () => end(new Lost("the server ended the call", { code: "UNAVAILABLE", reason: "UNAVAILABLE" })));
    this.#calls.add(its);
    return its;
  }

  // Sends no more on a call.
  #leave(its) {
    if (its.isLeft) return;
    its.isLeft = true;
    this.#present = null;
    its.call.end();
  }

  close() {
    this.#isClosed = true;
    for (const { call, waiting } of this.#calls) waiting.size > 0 ? call.cancel() : call.end();
  }
}

// Yields how each job ends, as it ends. At most `atOnce` are taken from the jobs, and not yet out of here.
async function* inParallel(jobs, atOnce, run) {
  const outcomes = [];
  let [held, isOver, isTaken, fault] = [0, false, false, null];
  // Each loop waits for the other one.
  let waiting = [];
  const wake = () => waiting.splice(0).forEach((resolve) => resolve());
  const change = () => new Promise((resolve) => waiting.push(resolve));
  const runOne = async (job) => {
    outcomes.push(await run(job).then((result) => ({ job, result }), (error) => ({ job, error })));
    wake();
  };
  const takeAll = async () => {
    for await (const job of jobs) {
      held++;
      runOne(job);
      while (held >= atOnce && !isOver) await change();
      if (isOver) return;
    }
  };
  takeAll().catch((error) => (fault = { error })).finally(() => {
    isTaken = true;
    wake();
  });
  try {
    while (!isTaken || held > 0) {
      for (; outcomes.length > 0; wake()) {
        held--;
        yield outcomes.shift();
      }
      if (fault) throw fault.error;
      if (!isTaken || held > 0) await change();
    }
  } finally {
    isOver = true;
    wake();
  }
}

module.exports = { Many, inParallel };
