// BullMQ's producer and worker: `node bullmq_node.mjs fleet|enqueue|work|versions ...`, as child.py has it.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

const require = createRequire(path.join(process.env.PEERS_MODULES, "package.json"));
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    workers: { type: "string", default: "2" }, mode: { type: "string", default: "one" },
    kind: { type: "string", default: "noop" }, jobs: { type: "string", default: "1" },
    seconds: { type: "string", default: "60" },
  },
});
const FAILED = 2 ** 31, ENDED = 2 ** 30, HEAVY_MS = 20, STEP = 1000;

// Node reads the wall clock in whole milliseconds: a tick of it is waited for, the rest is counted from there.
function wallAhead() {
  const last = Date.now();
  while (Date.now() === last);
  return BigInt(Date.now()) * 1_000_000n - process.hrtime.bigint();
}
const AHEAD = wallAhead();
const nowNs = () => process.hrtime.bigint() + AHEAD;
const tell = (value) => console.log(JSON.stringify(value));

function connection() {
  const url = new URL(process.env.PEERS_URL);
  return { host: url.hostname, port: Number(url.port) };
}

// 24 bytes: number, pid, time of the note, time from the payload.
function note(out, number, atNs = 0) {
  const bytes = Buffer.alloc(24);
  bytes.writeUInt32LE(number >>> 0, 0);
  bytes.writeUInt32LE(process.pid, 4);
  bytes.writeBigInt64LE(nowNs(), 8);
  bytes.writeBigInt64LE(BigInt(atNs), 16);
  fs.writeSync(out, bytes);
}

function burn() {
  const until = performance.now() + HEAVY_MS;
  while (performance.now() < until);
}

function work() {
  const { Worker } = require("bullmq");
  const out = fs.openSync(process.env.PEERS_NOTES, "a");
  const run = async (job) => {
    const { number, kind, at_ns } = job.data;
    if (kind === "fail" && job.attemptsMade === 0) {
      note(out, number + FAILED);
      throw new Error("fails once");
    }
    note(out, number, at_ns);
    if (kind === "heavy") {
      burn();
      note(out, number + ENDED);
    }
  };
  const concurrency = process.env.PEERS_CONFIGURATION === "wide" ? 100 : 1;
  new Worker("peers", run, { connection: connection(), concurrency }).on("error", () => {});
}

async function enqueue({ mode, kind, jobs, seconds }) {
  const { Queue } = require("bullmq");
  const queue = new Queue("peers", { connection: connection() });
  await queue.waitUntilReady();
  const payload = (number, at_ns = 0) => ({ number, kind, at_ns, pad: "x".repeat(40) });
  const terms = { removeOnComplete: true, removeOnFail: true, ...(kind === "fail" ? { attempts: 2 } : {}) };
  const began = performance.now(), until = began + seconds * 1000;
  let sent = 0;
  while (sent < jobs && performance.now() < until) {
    if (mode === "many") {
      const step = [];
      for (; step.length < STEP && sent < jobs; sent++) step.push({ name: "work", data: payload(sent), opts: terms });
      await queue.addBulk(step);
      continue;
    }
    if (mode === "paced") {
      await sleep(5 + 15 * Math.random());
      await queue.add("work", payload(sent, Number(nowNs())), terms);
    } else if (mode === "delayed") {
      const delay = Math.round(200 + 1000 * Math.random());
      await queue.add("work", payload(sent, Number(nowNs()) + delay * 1e6), { ...terms, delay });
    } else {
      await queue.add("work", payload(sent), terms);
    }
    sent++;
  }
  tell({ jobs: sent, seconds: (performance.now() - began) / 1000 });
  await queue.close();
}

switch (positionals.at(-1)) {
  case "fleet":
    tell(Array(Number(values.workers)).fill([process.execPath, fileURLToPath(import.meta.url), "work"]));
    break;
  case "versions":
    tell({ node: process.versions.node, bullmq: require("bullmq/package.json").version });
    break;
  case "work":
    work();
    break;
  default:
    await enqueue({ ...values, jobs: Number(values.jobs), seconds: Number(values.seconds) });
    process.exit(0);
}
