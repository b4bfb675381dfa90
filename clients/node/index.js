// Callers and workers of waterwheel. `index.d.ts` has the types and says what each thing does.
"use strict";

const { Client } = require("./client.js");
const { JobError, Refused, Missed, Failed, Later, Lost } = require("./errors.js");
const { Worker, Output } = require("./worker.js");

module.exports = { Client, JobError, Refused, Missed, Failed, Later, Lost, Worker, Output, worker: new Worker() };
