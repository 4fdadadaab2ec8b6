// Enqueue jobs from Node, without a server: a file is written, and renamed into the spool's inbox.
//
//     node produce.mjs SPOOL webhooks deliver '["https://example.org/hook", {"order": 17}]'
//
// SPOOL QUEUE HANDLER, then any number of argument lists, a job each, all of them in one file: they come in together or
// not at all. The spool must be there: `batchq spool status` shows where.
import { randomBytes } from "node:crypto";
import { open, rename, unlink } from "node:fs/promises";
import { join } from "node:path";

/** Resolves when the jobs outlive a power cut: [{queue, job, args, kwargs, priority, delay_ms, id}, ...], at most 1000. */
export async function drop(spool, jobs) {
  const micros = BigInt(Date.now()) * 1000n;
  const stamp = micros.toString(16).padStart(16, "0");
  const name = `${stamp}-${process.pid}-${randomBytes(4).toString("hex")}.${jobs.length}.ndjson`;
  const temporary = join(spool, "inbox", "tmp", name);
  const file = await open(temporary, "wx", 0o600);
  try {
    await file.writeFile(jobs.map((job) => JSON.stringify({ v: 1, ...job }) + "\n").join(""));
    await file.sync();
    await file.close();
    await rename(temporary, join(spool, "inbox", "new", name));
  } catch (error) {
    await unlink(temporary).catch(() => {});
    throw error;
  }
  const folder = await open(join(spool, "inbox", "new"));
  await folder.sync().finally(() => folder.close());
}

const [, script, spool, queue, job, ...lists] = process.argv;
if (script.endsWith("produce.mjs") && job !== undefined) {
  await drop(spool, lists.map((list) => ({ queue, job, args: JSON.parse(list) })));
}
