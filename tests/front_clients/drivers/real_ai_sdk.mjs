// A client of AI SDK that runs agents of a server, and says what each run was.
//
// node real_ai_sdk.mjs FOLDER-OF-NODE_MODULES PACKAGE BASE-URL SDK-VERSION
import { existsSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, name, base, version] = process.argv.slice(2);
const dist = join(folder, "node_modules", name, "dist");
const file = ["index.mjs", "index.js"].map((name) => join(dist, name)).find(existsSync);
const { DefaultChatTransport, readUIMessageStream } = await import(pathToFileURL(file));

// Nothing but a URL: which client asks is seen by what it says.
const plain = `${base}/v1/agent/stream`;
const api = version === "5" ? plain : `${plain}?format=ai-sdk&sdk_version=${version}`;
const options = { tools: ["run_command", "slow_data_processor"] };
const transport = new DefaultChatTransport({ api, body: options });

function user(text) {
  return { id: `user-${text}`, role: "user", parts: [{ type: "text", text }] };
}

function send(chatId, messages, abortSignal) {
  const asked = { trigger: "submit-message", chatId, messageId: undefined, messages };
  return transport.sendMessages({ ...asked, abortSignal });
}

// Reads a stream to its end. `look` is shown each chunk.
async function read(chunks, look = () => {}) {
  const seen = { pieces: {}, gaps: 0, errors: [], types: [], states: 0 };
  const noted = chunks.pipeThrough(new TransformStream({
    transform(chunk, controller) {
      if (chunk.type === "data-tool-output") {
        const { toolCallId, delta } = chunk.data;
        seen.pieces[toolCallId] = (seen.pieces[toolCallId] ?? "") + delta;
      }
      if (chunk.type === "data-execution") seen.execution = chunk.data.execution;
      if (chunk.type === "data-gap") seen.gaps += 1;
      if (seen.types.at(-1) !== chunk.type) seen.types.push(chunk.type);
      look(chunk);
      controller.enqueue(chunk);
    },
  }));
  let message;
  const onError = (error) => seen.errors.push(String(error?.message ?? error));
  for await (const state of readUIMessageStream({ stream: noted, onError })) {
    message = state;
    // What a page shows while the tool still runs.
    seen.states += state.parts.some((part) => part.preliminary === true);
  }
  return { message, ...seen };
}

function told({ message, ...seen }) {
  const parts = message?.parts ?? [];
  const of = (type) => parts.filter((part) => part.type === type);
  const results = of("dynamic-tool").map((part) => [part.toolCallId, part.output ?? null]);
  const ending = { abort: "cancelled", finish: "finished" }[seen.types.at(-1)];
  return {
    execution: seen.execution,
    text: of("text").map((part) => part.text).join(""),
    reasoning: of("reasoning").map((part) => part.text).join(""),
    pieces: seen.pieces,
    results: Object.fromEntries(results),
    ending: seen.errors.length > 0 ? "failed" : ending ?? seen.types.at(-1),
    problem: seen.errors[0] ?? null,
    gaps: seen.gaps,
    grown: seen.states,
  };
}

const scenes = {
  async whole() {
    const said = await read(await send("whole", [user("whole")]));
    // What was said before goes back with the next question.
    const again = [user("whole"), said.message, user("again")];
    const next = told(await read(await send("whole", again)));
    return { ...told(said), next: next.text, over: await transport.reconnectToStream({ chatId: "whole" }) };
  },
  async fails() {
    return told(await read(await send("fails", [user("fails")])));
  },
  async cancelled() {
    let asked;
    const stop = () => (asked ??= fetch(`${plain}/cancelled`, { method: "DELETE" }));
    const chunks = await send("cancelled", [user("endless")]);
    const said = told(await read(chunks, (chunk) => chunk.type === "text-delta" && stop()));
    return { ...said, status: (await asked).status };
  },
  async resumed() {
    const abort = new AbortController();
    const chunks = await send("resumed", [user("slow")], abort.signal);
    const look = (chunk) => chunk.type === "data-tool-output" && abort.abort();
    await read(chunks, look).catch(() => {});
    return told(await read(await transport.reconnectToStream({ chatId: "resumed" })));
  },
  async gap() {
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ tool: "agent", arguments: { task: "flood", ...options } });
    const created = await fetch(`${base}/v1/executions`, { method: "POST", headers, body });
    const { links } = await created.json();
    await (await fetch(`${base}${links.self}/result?wait_ms=60000`)).text();
    const late = new DefaultChatTransport({
      prepareReconnectToStreamRequest: () => ({
        api: `${base}${links.events}?format=ai-sdk&sdk_version=${version}`,
      }),
    });
    return told(await read(await late.reconnectToStream({ chatId: "any" })));
  },
};

// A scene for somebody who kills the server as soon as it is told to.
const alone = {
  async restarted() {
    let shown = "";
    const look = (chunk) => {
      if (chunk.type !== "data-tool-output") return;
      if (shown === "") process.stdout.write(`${JSON.stringify({ scene: "reached" })}\n`);
      shown += chunk.data.delta;
    };
    await read(await send("restarted", [user("slow")]), look).catch(() => {});
    for (;;) {
      const again = await transport.reconnectToStream({ chatId: "restarted" }).catch(() => {});
      if (again === undefined) {
        await new Promise((resolve) => setTimeout(resolve, 20)); // Nobody listens yet.
        continue;
      }
      const said = await read(again);
      const ends = said.types.filter((type) => type === "finish").length;
      return { ...told(said), shown, ends };
    }
  },
};

const { SCENE } = process.env;
const played = SCENE ? { [SCENE]: alone[SCENE] } : scenes;
for (const [scene, play] of Object.entries(played)) {
  const said = await play().catch((error) => ({ thrown: String(error?.stack ?? error) }));
  process.stdout.write(`${JSON.stringify({ scene, ...said })}\n`);
}
