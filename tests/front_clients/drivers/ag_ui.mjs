// A client of AG-UI: runs an agent at each address, and says what its messages are.
//
// node ag_ui.mjs FOLDER-OF-NODE_MODULES URL...
import { createRequire } from "node:module";

const [folder, ...urls] = process.argv.slice(2);
const { HttpAgent } = createRequire(`${folder}/`)("@ag-ui/client");

async function read(url, messages) {
  const seen = { types: [], errors: [], gaps: 0, finished: null };
  const agent = new HttpAgent({ url, threadId: "thread-1" });
  agent.messages = messages;
  const subscriber = {
    onEvent({ event }) {
      if (seen.types.at(-1) !== event.type) seen.types.push(event.type);
      if (event.type === "CUSTOM" && event.name === "streamdoor.gap") seen.gaps += 1;
    },
    onRunErrorEvent({ event }) {
      seen.errors.push({ message: event.message, code: event.code });
    },
    onRunFinishedEvent({ event }) {
      seen.finished = { outcome: event.outcome, usage: event.usage };
    },
    onRunFailed({ error }) {
      seen.failed = String(error?.message ?? error);
    },
  };
  await agent.runAgent({ runId: "run-1" }, subscriber).catch((error) => {
    seen.thrown = String(error?.message ?? error);
  });
  return { messages: agent.messages, ...seen };
}

const first = { id: "1", role: "user", content: "find it" };
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));
for (const url of urls) {
  const seen = await read(url, [first]);
  process.stdout.write(`${JSON.stringify({ ...seen, warnings: warnings.splice(0) })}\n`);
}

// What was said before goes back with the next question.
const { messages } = await read(urls[0], [first]);
await read(urls[0], [...messages, { id: "3", role: "user", content: "again" }]);
