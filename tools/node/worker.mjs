#!/usr/bin/env node
// A worker for streamdoor: a client that does the work of virtual tools. Node 20, no packages.
// It is meant to be copied: `Worker` is all that a worker needs, `TOOLS` are three examples.
//
//   node worker.mjs --url http://127.0.0.1:8808 --session me
//                   [--mode parts|lines] [--only a,b] [--token T]
//
// A call that is part of a trace brings `traceparent` (and `tracestate`, `baggage`), as W3C spells
// them: `run` is given it, to hand it on to whomever it asks.
//
// A tool is an async generator. It yields parts: { content }, where content is a text or any other
// value, { progress: { progress, total, message } }, or both. The generator is only asked for its
// next part when the one before was taken: a subscriber that blocks slows the tool itself.

import { once } from "node:events";
import http from "node:http";
import https from "node:https";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

// --- The worker ----------------------------------------------------------------------------------

/** Why a call is not worked on any more. */
class Cancelled extends Error {}

class Worker {
  /** `tools`: by name { description, input_schema, run(args, signal, call), ... }. */
  constructor({ url, session, token, tools, mode = "parts", log = () => {} }) {
    Object.assign(this, { url: new URL(url), session, token, tools, mode, log });
    this.agent = new (this.#client().Agent)({ keepAlive: true });
    this.calls = new Map(); // By id: an AbortController.
  }

  /** Says which tools there are, and works until `signal` is aborted; it comes back by itself. */
  async work(signal) {
    for (let pause_ms = 100; !signal.aborted; pause_ms = Math.min(pause_ms * 2, 5_000)) {
      try {
        await this.#putTools();
        await this.#takeCalls(signal, () => (pause_ms = 50));
      } catch (error) {
        if (!signal.aborted) this.log(`the connection is gone: ${error.message}`);
      }
      // Not all at the same moment.
      await sleep(pause_ms * (1 + Math.random()), undefined, { signal }).catch(() => {});
    }
  }

  async #putTools() {
    for (const [name, { run, ...tool }] of Object.entries(this.tools)) {
      const answer = await this.#ask("PUT", `/v1/virtual-tools/${name}`, tool);
      if (answer.status >= 300) throw new Error(`${name}: ${JSON.stringify(answer.body)}`);
    }
  }

  /** Reads the stream of calls to its end. */
  async #takeCalls(signal, connected) {
    const names = Object.keys(this.tools).join(",");
    const request = this.#request("GET", `/v1/tool-calls/stream?tools=${names}`, { signal });
    request.end();
    const [response] = await once(request, "response");
    if (response.statusCode !== 200) {
      response.resume();
      throw new Error(`status ${response.statusCode}`);
    }
    connected();
    this.log("connected");
    for await (const { event, data } of serverSentEvents(response)) {
      if (event === "cancel") {
        this.calls.get(data.id)?.abort(new Cancelled(data.reason));
      } else if (event === "tool_call") {
        if (this.calls.has(data.id)) continue; // We are back, and told again what we do.
        void this.#carryOut(data);
      }
    }
    throw new Error("it has ended");
  }

  async #carryOut(call) {
    const controller = new AbortController();
    this.calls.set(call.id, controller);
    const { signal } = controller;
    try {
      if (call.next_seq > 1) throw new Error("the worker was restarted in the middle of this call");
      const run = this.tools[call.name]?.run;
      if (!run) throw new Error(`this worker has no tool ${call.name}`);
      const parts = withEnd(run(call.arguments, signal, call), call.id, signal);
      await (this.mode === "lines" ? this.#sendLines(parts, signal) : this.#sendEach(parts, signal));
      this.log(`completed ${call.id}`);
    } catch (thrown) {
      const error = signal.aborted ? signal.reason : thrown; // Whatever it was in the middle of.
      if (error instanceof Cancelled) this.log(`cancelled ${call.id}: ${error.message}`);
      else await this.#fail(call.id, error);
    } finally {
      this.calls.delete(call.id);
    }
  }

  async #fail(id, error) {
    this.log(`failed ${id}: ${error.message}`);
    const part = { tool_call_id: id, error: String(error.message).slice(0, 1_000) || "failed" };
    await this.#sendPart(part, undefined).catch(() => {}); // Perhaps it has ended otherwise.
  }

  /** One request a part. Its number makes it safe to send it twice. */
  async #sendEach(parts, signal) {
    for await (const part of parts) await this.#sendPart(part, signal);
  }

  async #sendPart(part, signal) {
    for (let attempt = 1; ; attempt += 1) {
      signal?.throwIfAborted();
      let answer;
      try {
        answer = await this.#ask("POST", "/v1/tool-results/stream", part);
      } catch (error) {
        if (attempt >= 5) throw error; // It was sent, or it was not: the number tells.
        await sleep(100 * attempt);
        continue;
      }
      if (answer.status === 200) return;
      if (answer.status !== 429) throw refused(answer);
      // There is no room: a subscriber has to read first. Nothing of the part was taken.
      await sleep(Number(answer.headers["retry-after"] ?? 1) * 1_000, undefined, { signal })
        .catch(() => {});
    }
  }

  /** All parts as lines of one long request: the fastest way. TCP says when to wait. */
  async #sendLines(parts, signal) {
    const headers = { "Content-Type": "application/x-ndjson" };
    const request = this.#request("POST", "/v1/tool-results/stream", { headers });
    const response = new Promise((resolve, reject) => {
      request.on("response", resolve).on("error", reject);
    });
    response.catch(() => {}); // It is awaited below.
    let isAnswered = false;
    response.finally(() => (isAnswered = true)).catch(() => {});
    signal.addEventListener("abort", () => request.destroy(signal.reason), { once: true });
    try {
      for await (const part of parts) {
        if (isAnswered) break; // Before its end: something is wrong.
        if (!request.write(JSON.stringify(part) + "\n")) {
          await Promise.race([once(request, "drain").catch(() => {}), response]);
        }
      }
      request.end();
    } catch (error) {
      request.destroy();
      throw error;
    }
    const answer = await readAnswer(await response);
    signal.throwIfAborted();
    if (answer.status !== 200) throw refused(answer);
  }

  #client() {
    return this.url.protocol === "https:" ? https : http;
  }

  #request(method, path, { headers = {}, signal } = {}) {
    const all = { "X-Session-ID": this.session, ...headers };
    if (this.token) all.Authorization = `Bearer ${this.token}`;
    const options = { method, headers: all, signal, agent: this.agent };
    return this.#client().request(new URL(path, this.url), options);
  }

  async #ask(method, path, body) {
    const text = JSON.stringify(body);
    const headers = {
      "Content-Type": "application/json",
      "Content-Length": Buffer.byteLength(text),
    };
    const request = this.#request(method, path, { headers });
    request.end(text);
    const [response] = await once(request, "response");
    return readAnswer(response);
  }
}

/** The parts of a call with its name and their numbers, and the last one that says so. */
async function* withEnd(parts, id, signal) {
  let seq = 0;
  for await (const part of parts) {
    signal.throwIfAborted();
    yield { tool_call_id: id, seq: ++seq, complete: false, ...part };
  }
  signal.throwIfAborted();
  yield { tool_call_id: id, seq: ++seq, content: "", complete: true };
}

function refused({ status, body }) {
  const { code, message } = body?.error ?? {};
  return status === 410 ? new Cancelled(message) : new Error(`${status} ${code}: ${message}`);
}

async function readAnswer(response) {
  const chunks = [];
  for await (const chunk of response) chunks.push(chunk);
  const text = Buffer.concat(chunks).toString();
  return {
    status: response.statusCode,
    headers: response.headers,
    body: text ? JSON.parse(text) : undefined,
  };
}

/** Events of a response, their data read as JSON. */
async function* serverSentEvents(response) {
  response.setEncoding("utf8");
  let [rest, event, data] = ["", "message", ""];
  for await (const text of response) {
    const lines = (rest + text).split("\n"); // The server ends its lines so.
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data) yield { event, data: JSON.parse(data) };
        [event, data] = ["message", ""];
      } else if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
  }
}

// --- Three tools ---------------------------------------------------------------------------------

/** A large search: each batch is a part as soon as it is found. */
async function* searchLargeDataset({ query, rows = 1_000, batch = 100 }, signal) {
  let results = [];
  for (let row = 1; row <= rows; row += 1) {
    if (row % 3 === 0) results.push(`${query} in row ${row}`);
    if (row % batch === 0 || row === rows) {
      yield { content: { results, hasMore: row < rows } };
      results = [];
      await sleep(1, undefined, { signal });
    }
  }
}

/** A long analysis: how far it is, and a report at the end. */
async function* analyzeFiles({ files = 4, step_ms = 60 }, signal) {
  const steps = [
    ["Analyzing files...", 0.2],
    ["Processing data...", 0.5],
    ["Generating report...", 0.8],
  ];
  for (const [message, progress] of steps) {
    yield { progress: { progress, total: 1, message } };
    await sleep(step_ms, undefined, { signal });
  }
  const report = { status: "Complete", files, findings: files * 3 };
  yield { content: report, progress: { progress: 1, total: 1, message: "Complete" } };
}

/** Live events, until nobody wants them any more. */
async function* monitorEvents({ every_ms = 5, bytes = 0 }, signal) {
  for (let number = 1; ; number += 1) {
    const padding = "x".repeat(bytes);
    yield { content: { event: `event ${number}`, timestamp: Date.now(), padding } };
    await sleep(every_ms, undefined, { signal });
  }
}

const number = { type: "integer", minimum: 0 };
const object = (properties, required = []) => ({
  type: "object",
  properties,
  required,
  additionalProperties: false,
});

const TOOLS = {
  search_large_dataset: {
    description: "Searches a large dataset, and gives what it finds in batches.",
    input_schema: object({ query: { type: "string" }, rows: number, batch: number }, ["query"]),
    run: searchLargeDataset,
  },
  analyze_files: {
    description: "Analyzes files, says how far it is, and writes a report.",
    input_schema: object({ files: number, step_ms: number }),
    run: analyzeFiles,
  },
  monitor_events: {
    description: "Passes on what happens, until it is cancelled.",
    input_schema: object({ every_ms: number, bytes: number }),
    coalesce: { delay_ms: 20, max_bytes: 4_096 }, // Small ones travel together.
    run: monitorEvents,
  },
};

// --- The program ---------------------------------------------------------------------------------

const { values: options } = parseArgs({
  options: {
    url: { type: "string", default: "http://127.0.0.1:8808" },
    session: { type: "string", default: `worker-${process.pid}` },
    mode: { type: "string", default: "parts" },
    only: { type: "string" },
    token: { type: "string" },
  },
});
const names = options.only?.split(",") ?? Object.keys(TOOLS);
const tools = Object.fromEntries(names.map((name) => [name, TOOLS[name]]));
const worker = new Worker({ ...options, tools, log: (text) => console.log(text) });
const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
process.on("SIGINT", () => stop.abort());
await worker.work(stop.signal);
process.exit(0);
