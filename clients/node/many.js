// Many jobs on one call, and on another one if it breaks.
"use strict";

// Yields how each job ends. It takes jobs as fast as the server and the loop take them: at most `atOnce` are sent and
// not yet taken out of it. What is refused is sent again.
async function* many(jobs, how) {
  const calls = new Set();
  const outcomes = [];
  let [held, number, isOver, current] = [0, 0, false, null];
  // Each loop waits for the other one, and for the call.
  let waiting = [];
  const wake = () => waiting.splice(0).forEach((resolve) => resolve());
  const change = () => new Promise((resolve) => waiting.push(resolve));
  const tell = (outcome) => {
    outcomes.push(outcome);
    wake();
  };

  const settle = (job, tries, failure) =>
    tries.another(failure).then(() => send(job, tries)).catch((error) => tell({ job, error }));

  // A call, with what has no answer on it.
  const open = () => {
    const its = { pending: new Map(), isLeft: false };
    its.leave = () => {
      its.isLeft = true;
      if (current === its) current = null;
      its.call?.end();
    };
    const end = (failure) => {
      its.leave();
      calls.delete(its);
      for (const [job, tries] of its.pending.values()) settle(job, tries, failure);
      its.pending.clear();
      wake();
    };
    const answer = ({ tag, result, failure }) => {
      const [job, tries] = its.pending.get(tag);
      its.pending.delete(tag);
      if (result) return tell({ job, result: how.result(result) });
      const error = how.ofFailure(failure);
      // Another server may be there.
      if (error.code === "UNAVAILABLE" && error.started === false) its.leave();
      settle(job, tries, error);
    };
    its.isReady = how.open().then((call) => {
      its.call = call;
      calls.add(its);
      call.on("data", answer);
      call.on("error", (error) => end(how.ofCall(error, call)));
      call.on("end", () => end(how.lost("the server ended the call")));
    }, (error) => {
      its.leave();
      throw error;
    });
    return its;
  };

  const send = async (job, tries) => {
    const message = how.message(job);
    const its = (current ??= open());
    await its.isReady;
    if (isOver) return its.leave();
    if (its.isLeft) return send(job, tries);
    its.pending.set(String(++number), [job, tries]);
    // The server reads no more while the pool is full.
    if (its.call.write({ tag: String(number), job: message })) return;
    its.call.once("drain", wake);
    while (its.call.writableNeedDrain && calls.has(its) && !isOver) await change();
  };
  const sendAll = async () => {
    for await (const job of jobs) {
      held++;
      await send(job, how.tries(job)).catch((error) => tell({ job, error }));
      while (held >= how.atOnce && !isOver) await change();
      if (isOver) return;
    }
  };
  let [fault, isSent] = [null, false];
  sendAll().catch((error) => (fault = { error })).finally(() => {
    isSent = true;
    wake();
  });
  try {
    while (!isSent || held > 0) {
      while (outcomes.length > 0) {
        held--;
        wake();
        yield outcomes.shift();
      }
      if (fault) throw fault.error;
      if (!isSent || held > 0) await change();
    }
  } finally {
    isOver = true;
    for (const { call, pending } of calls) pending.size > 0 ? call.cancel() : call.end();
    wake();
  }
}

module.exports = { many };
