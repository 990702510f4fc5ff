// A client of the TypeScript SDKs that does what it is told, line by line: see ../driver.rs.
//
// node typescript.mjs FOLDER-OF-NODE_MODULES sdk|client MODE URL
// node typescript.mjs FOLDER-OF-NODE_MODULES sdk|client MODE -- PROGRAM [ARGUMENT...]
//
// `sdk` is version 1, which knows the handshake alone; `client` is version 2.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, generation, mode, url, ...command] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const isFirst = generation === "sdk";
const at = (first, second) => require(isFirst ? `@modelcontextprotocol/sdk/${first}` : second);
const { Client } = at("client/index.js", "@modelcontextprotocol/client");
const { StdioClientTransport } = at("client/stdio.js", "@modelcontextprotocol/client/stdio");
const http = at("client/streamableHttp.js", "@modelcontextprotocol/client");

const TIMEOUT_MS = 120_000;
const say = (document) => process.stdout.write(`${JSON.stringify(document)}\n`);
const calls = new Map();
let client;
let transport;

async function connect() {
  const negotiation = mode === "legacy" || mode === "auto" ? mode : { pin: mode };
  const options = isFirst ? {} : { versionNegotiation: { mode: negotiation } };
  client = new Client({ name: `driver-${generation}`, version: "1.0.0" }, options);
  client.onerror = (error) => {
    // Its own closing is no trouble.
    if (!String(error).includes("AbortError")) say({ trouble: String(error) });
  };
  if (url === "--") {
    const [program, ...words] = command;
    transport = new StdioClientTransport({ command: program, args: words, stderr: "inherit" });
  } else {
    transport = new http.StreamableHTTPClientTransport(new URL(url));
  }
  let version = "";
  const learn = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (told) => {
    version = told;
    learn?.(told);
  };
  await client.connect(transport, { timeout: TIMEOUT_MS });
  return { version: client.getNegotiatedProtocolVersion?.() ?? version };
}

async function list() {
  const names = [];
  let cursor;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor });
    names.push(...page.tools.map((tool) => tool.name));
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return { tools: names };
}

async function call({ id, tool, given, deaf }) {
  const stopped = new AbortController();
  calls.set(id, stopped);
  const options = { signal: stopped.signal, timeout: TIMEOUT_MS };
  if (!deaf) {
    options.onprogress = ({ progress, total, message }) =>
      say({ call: id, progress, total, message });
  }
  const params = { name: tool, arguments: given };
  try {
    const result = await (isFirst
      ? client.callTool(params, undefined, options)
      : client.callTool(params, options));
    const text = result.content.map((block) => block.text ?? "").join("");
    say({ call: id, text, failed: result.isError === true, meta: result._meta ?? {} });
  } catch (error) {
    say({ call: id, error: String(error) });
  }
  calls.delete(id);
}

async function close() {
  if (url !== "--" && transport.sessionId) await transport.terminateSession();
  await client.close();
  return { closed: true };
}

const orders = { connect, list, close };
for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.do === "call") {
    void call(order);
  } else if (order.do === "cancel") {
    calls.get(order.id)?.abort("not wanted any more");
  } else {
    try {
      say({ done: order.do, ...(await orders[order.do]()) });
    } catch (error) {
      say({ done: order.do, error: String(error) });
    }
  }
}
process.exit(0);
