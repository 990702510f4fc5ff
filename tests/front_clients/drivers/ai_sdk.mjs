// A client of AI SDK: reads each stream as `useChat` does, and says what the message is.
//
// node ai_sdk.mjs FOLDER-OF-NODE_MODULES PACKAGE URL...
import { existsSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, name, ...urls] = process.argv.slice(2);
const dist = join(folder, "node_modules", name, "dist");
const file = ["index.mjs", "index.js"].map((name) => join(dist, name)).find(existsSync);
const { DefaultChatTransport, readUIMessageStream } = await import(pathToFileURL(file));

const first = { id: "1", role: "user", parts: [{ type: "text", text: "find it" }] };

async function read(url, messages) {
  const errors = [];
  const seen = { pieces: {}, gaps: 0, snapshots: 0, snapshot_bytes: 0, types: [] };
  const transport = new DefaultChatTransport({ api: url });
  const chunks = await transport.sendMessages({
    trigger: "submit-message", chatId: "chat", messageId: undefined, messages,
  });
  const noted = chunks.pipeThrough(new TransformStream({
    transform(chunk, controller) {
      if (seen.types.at(-1) !== chunk.type) seen.types.push(chunk.type);
      if (chunk.type === "data-tool-output") {
        const { toolCallId, delta } = chunk.data;
        seen.pieces[toolCallId] = (seen.pieces[toolCallId] ?? "") + delta;
      }
      if (chunk.type === "data-gap") seen.gaps += 1;
      if (chunk.type === "tool-output-available" && chunk.preliminary) {
        seen.snapshots += 1;
        seen.snapshot_bytes += Buffer.byteLength(chunk.output);
      }
      controller.enqueue(chunk);
    },
  }));
  let message;
  const onError = (error) => errors.push(String(error?.message ?? error));
  for await (const state of readUIMessageStream({ stream: noted, onError })) message = state;
  return { message, errors, ...seen };
}

for (const url of urls) {
  const thrown = (error) => ({ thrown: String(error?.stack ?? error) });
  const seen = await read(url, [first]).catch(thrown);
  process.stdout.write(`${JSON.stringify(seen)}\n`);
}

// What was said before goes back with the next question.
const { message } = await read(urls[0], [first]);
const again = { id: "3", role: "user", parts: [{ type: "text", text: "again" }] };
await read(urls[0], [first, message, again]);
