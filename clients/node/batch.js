// The jobs of one kind together: one batch at a time, of those that are there.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");

class Batch {
  #waiting = [];
  #isBusy = false;
  #came = () => {};
  // How many jobs the worker had at once: it does not know how many it may get.
  #most = 0;

  constructor(handler, max, slots, read) {
    Object.assign(this, { handler, max, slots, read });
  }

  async add(job) {
    this.#waiting.push(job);
    this.#came();
    if (this.#isBusy) return;
    this.#isBusy = true;
    // Those that came in one read of the connection are there in the next turn.
    await new Promise(setImmediate);
    for (let jobs = this.#take(); jobs.length > 0; jobs = this.#take()) {
      const began = performance.now();
      const end = await this.#run(jobs);
      // While all places were taken, those who wait are about to come: without a pause for them, batches would halve.
      const places = Math.min(this.max, this.slots());
      const held = [...jobs, ...this.#waiting].filter((job) => !job.cancelled).length;
      this.#most = Math.max(this.#most, places, held);
      const took = performance.now() - began;
      // A caller that is slow to read a long result holds up no other job.
      jobs.forEach((job, number) => void this.#answer(job, end, number));
      if (held >= this.#most) await this.#refill(places, took / 20);
    }
    this.#isBusy = false;
  }

  // Leaves out the jobs that are cancelled, and so answered.
  #take() {
    this.#waiting = this.#waiting.filter((job) => !job.cancelled);
    return this.#waiting.splice(0, this.max);
  }

  async #run(jobs) {
    try {
      const results = await this.handler(jobs);
      if (Array.isArray(results) && results.length === jobs.length) return { results };
      const what = Array.isArray(results) ? `${results.length} results` : typeof results;
      throw new TypeError(`the handler returned ${what} for ${jobs.length} jobs`);
    } catch (error) {
      return { error };
    }
  }

  async #answer(job, { results, error }, number) {
    try {
      if (!results) throw error;
      if (results[number] instanceof Error) throw results[number];
      await job.finish(...this.read(results[number]));
    } catch (error) {
      job.fail(error);
    }
  }

  async #refill(places, most) {
    const end = performance.now() + most;
    while (this.#waiting.length < places && performance.now() < end) {
      const came = new Promise((resolve) => (this.#came = resolve));
      await Promise.race([came, sleep(Math.ceil(end - performance.now()), null, { ref: false })]);
    }
  }
}

module.exports = { Batch };
