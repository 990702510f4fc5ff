// The transport of Durable Streams for AI SDK: a generation is written to a stream, and a chat reads
// it from there, again after each restart of the server.
//
// node ai_sdk.mjs FOLDER-OF-NODE_MODULES BASE-URL
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, base] = process.argv.slice(2);
const { resolve } = createRequire(`${folder}/`);
const load = (name) => import(pathToFileURL(resolve(name)));
const { createDurableChatTransport, toDurableStreamResponse } =
  await load("@durable-streams/aisdk-transport");
const { readUIMessageStream } = await load("ai");

const WORDS = 400;
const say = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function* generation() {
  yield { type: "start", messageId: "message" };
  yield { type: "text-start", id: "text" };
  for (let n = 0; n < WORDS; n += 1) {
    yield { type: "text-delta", id: "text", delta: `${n} ` };
    await sleep(5);
  }
  yield { type: "text-end", id: "text" };
  yield { type: "finish" };
}

// The back end of the chat, without a server of its own: POST begins a generation, and GET tells
// where it is.
const url = `${base}/v1/stream/ai-sdk/chat`;
async function backEnd(_, { method }) {
  if (method === "POST") {
    return toDurableStreamResponse({ source: generation(), stream: { writeUrl: url } });
  }
  return Response.json({ streamUrl: url }, { headers: { Location: url } });
}

// Reads a message to its end. Rejects when the response breaks.
async function read(chunks, look) {
  let message;
  let problem;
  const onError = (error) => (problem ??= error);
  for await (const state of readUIMessageStream({ stream: chunks, onError, terminateOnError: true })) {
    message = state;
    look(message.parts.at(-1)?.text ?? "");
  }
  if (problem) throw problem;
  return message;
}

// The transport leaves a promise of a broken response to nobody. A page would only log it.
process.on("unhandledRejection", () => {});

let reached = -1;
const look = (text) => {
  const n = Number(text.trim().split(" ").at(-1));
  if (n % 20 === 19 && n > reached) say({ reached: (reached = n) });
};
const transport = createDurableChatTransport({ api: "http://localhost/chat", fetchClient: backEnd });
const messages = [{ id: "user", role: "user", parts: [{ type: "text", text: "count" }] }];
let chunks = await transport.sendMessages({ trigger: "submit-message", chatId: "chat", messages });
for (let breaks = 0; ; breaks += 1) {
  try {
    const message = await read(chunks, look);
    const [{ text }] = message.parts.filter((part) => part.type === "text");
    say({ done: true, messages: WORDS, text, breaks: [breaks] });
    process.exit(0);
  } catch {
    chunks = await transport.reconnectToStream({ chatId: "chat" });
  }
}
