// A server of the TypeScript SDK (version 1) for one run of `bench mcp --only typescript`.
//
// node typescript.mjs FOLDER-OF-NODE_MODULES --transport http|stdio --plan FILE --executions N ...
//
// As people write it: an McpServer for each session, a tool whose callback awaits
// `sendNotification`; over HTTP one transport for each session behind node's own server. See
// `bench/mcp/peer.rs` for what it is told. Node's timers count in milliseconds: in the last two
// before something is due it polls by `setImmediate`, so that it still reads what comes.
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";

const [folder, ...words] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const http = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { z } = require("zod");

const options = {};
for (let at = 0; at + 1 < words.length; at += 2) options[words[at].slice(2)] = words[at + 1];
const executions = Number(options.executions);
const plan = new BigUint64Array(new Uint8Array(readFileSync(options.plan)).buffer);
const text = "the quick brown fox jumps over the lazy dog, ".repeat(1500).slice(0, options.size);
const STAMP_DIGITS = 20;
const LEAD_NS = 20_000_000n;
const POLLS_MS = 2n;
const LINGER_MS = 2;

const now = () => process.hrtime.bigint();
const turn = () => new Promise((resolve) => setImmediate(resolve));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const begun = Promise.withResolvers?.() ?? deferred();
let started = 0;

function deferred() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  return made;
}

async function until(due) {
  for (;;) {
    const left = due - now();
    if (left <= 0n) return;
    const ms = left / 1_000_000n;
    await (ms > POLLS_MS ? sleep(Number(ms - POLLS_MS)) : turn());
  }
}

async function pace(index, notify) {
  started += 1;
  if (started === executions) begun.resolve(now() + LEAD_NS);
  const origin = await begun.promise;
  if (plan.length === 0) {
    const s = Number(options.duration) + Number(options.warmup);
    const end = origin + BigInt(Math.round(s * 1e9));
    await until(origin);
    for (let number = 1; now() < end; number += 1) {
      await notify(number, now());
      if (number % 64 === 0) await turn(); // Others are served, too.
    }
    return;
  }
  for (let k = index, number = 1; k < plan.length; k += executions, number += 1) {
    await until(origin + plan[k]);
    await notify(number, origin + plan[k]);
  }
}

function makeServer() {
  const server = new McpServer({ name: "peer", version: "0" });
  const tool = (work) => async (given, extra) => {
    const progressToken = extra._meta?.progressToken;
    const notify = (progress, due) => {
      const message = String(due).padStart(STAMP_DIGITS, "0") + text.slice(STAMP_DIGITS);
      const params = { progressToken, progress, message };
      return extra.sendNotification({ method: "notifications/progress", params });
    };
    await work(given, notify);
    await sleep(LINGER_MS);
    return { content: [] };
  };
  const first = tool((_, notify) => notify(1, now()));
  server.registerTool("first", { description: "One chunk.", inputSchema: {} }, first);
  const paced = tool((given, notify) => pace(given.index, notify));
  server.registerTool("paced", { description: "All.", inputSchema: { index: z.number() } }, paced);
  return server;
}

async function body(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  return pieces.length === 0 ? undefined : JSON.parse(Buffer.concat(pieces).toString());
}

async function serveHttp() {
  const transports = new Map();
  const server = createServer(async (request, response) => {
    request.socket.setNoDelay(true);
    const message = await body(request);
    let transport = transports.get(request.headers["mcp-session-id"]);
    if (transport === undefined) {
      transport = new http.StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => transports.set(id, transport),
      });
      await makeServer().connect(transport);
    }
    await transport.handleRequest(request, response, message);
  });
  server.keepAliveTimeout = 0;
  server.listen(0, "127.0.0.1", 2048, () => {
    console.log(`listening 127.0.0.1:${server.address().port}`);
  });
  process.stdin.resume();
  process.stdin.on("end", () => process.exit(0));
}

if (options.transport === "stdio") {
  await makeServer().connect(new StdioServerTransport());
} else {
  await serveHttp();
}
