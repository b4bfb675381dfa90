// Many jobs on one call.
"use strict";

// Yields how each job ends. It takes jobs as fast as the server and the loop take them: at most `atOnce` are sent and
// not yet taken out of it.
async function* many(jobs, how) {
  const pending = new Map();
  const outcomes = [];
  let held = 0;
  let isOver = false;
  // How the call ended: single calls send the jobs that follow.
  let end = null;
  // Each loop waits for the other one, and for the call.
  let waiting = [];
  const wake = () => waiting.splice(0).forEach((resolve) => resolve());
  const change = () => new Promise((resolve) => waiting.push(resolve));

  const settle = async (job, result, error) => {
    try {
      if (error) {
        await how.another(error, job);
        result = await how.submit(job);
      }
      outcomes.push({ job, result });
    } catch (error) {
      outcomes.push({ job, error });
    }
    wake();
  };
  const call = await how.open();
  call.on("data", ({ tag, result, failure }) => {
    const job = pending.get(tag);
    pending.delete(tag);
    settle(job, result && how.result(result), failure && how.ofFailure(failure));
  });
  call.on("error", (error) => {
    end = how.ofCall(error, call);
    for (const job of pending.values()) settle(job, null, end);
    end = how.refused(end);
    wake();
  });

  let number = 0;
  const send = async (job) => {
    held++;
    let message;
    try {
      message = how.message(job);
      if (end) throw end;
    } catch (error) {
      settle(job, null, error);
      return;
    }
    const tag = String(++number);
    pending.set(tag, job);
    // The server reads no more while the pool is full.
    if (!call.write({ tag, job: message })) {
      call.once("drain", wake);
      while (call.writableNeedDrain && !end && !isOver) await change();
    }
  };
  const sendAll = async () => {
    for await (const job of jobs) {
      await send(job);
      while (held >= how.atOnce && !isOver) await change();
      if (isOver) return;
    }
    if (!end) call.end();
  };
  let fault = null;
  let isSent = false;
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
    call.cancel();
    wake();
  }
}

module.exports = { many };
