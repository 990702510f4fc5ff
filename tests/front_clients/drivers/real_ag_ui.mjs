// A client of AG-UI that runs agents of a server, and says what each run was.
//
// node real_ag_ui.mjs FOLDER-OF-NODE_MODULES BASE-URL
import { createRequire } from "node:module";

const [folder, base] = process.argv.slice(2);
const { HttpAgent } = createRequire(`${folder}/`)("@ag-ui/client");

const url = `${base}/v1/agent/stream`;
const forwardedProps = { tools: ["run_command", "slow_data_processor"] };
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));

async function run(threadId, messages, look = () => {}, more = {}) {
  const { fetch, ...parameters } = more;
  const agent = new HttpAgent({ url, threadId, ...(fetch && { fetch }) });
  agent.messages = messages;
  const seen = { gaps: 0, ending: null, problem: null, custom: {} };
  const subscriber = {
    onEvent({ event }) {
      if (event.type === "CUSTOM") seen.custom[event.name] = event.value;
      if (event.type === "CUSTOM" && event.name === "streamdoor.gap") seen.gaps += 1;
      look(event, agent);
    },
    onRunErrorEvent({ event }) {
      seen.ending = "failed";
      seen.problem = `${event.code}: ${event.message}`;
    },
    onRunFinishedEvent({ outcome }) {
      seen.ending = outcome === "success" ? "finished" : String(outcome);
    },
  };
  await agent.runAgent({ forwardedProps, ...parameters }, subscriber).catch((error) => {
    seen.thrown = String(error?.message ?? error);
  });
  return { messages: agent.messages, ...seen };
}

function told({ messages, custom, ...seen }) {
  const of = (role) => messages.filter((message) => message.role === role);
  const pieces = of("activity").map(({ content }) => [content.toolCallId, content.pieces.join("")]);
  const results = of("tool").map((message) => [message.toolCallId, message.content]);
  return {
    ...seen,
    execution: custom["streamdoor.execution"]?.execution,
    passed_over: custom["streamdoor.tools_passed_over"] ?? [],
    text: of("assistant").map((message) => message.content ?? "").join(""),
    reasoning: of("reasoning").map((message) => message.content ?? "").join(""),
    pieces: Object.fromEntries(pieces),
    results: Object.fromEntries(results),
    warnings: warnings.splice(0),
  };
}

const user = (content) => [{ id: `user-${content}`, role: "user", content }];
const paint = { name: "paint", description: "Paints.", parameters: { type: "object", properties: {} } };

const scenes = {
  async whole() {
    const said = await run("ag-whole", user("whole"), undefined, { tools: [paint] });
    const again = [...said.messages, ...user("again")];
    const next = await run("ag-whole", again);
    const added = next.messages.slice(again.length).filter(({ role }) => role === "assistant");
    const over = await fetch(`${url}/ag-whole/stream?format=ag-ui`);
    return { ...told(said), next: added.map(({ content }) => content).join(""), over: over.status };
  },
  async fails() {
    return told(await run("ag-fails", user("fails")));
  },
  async cancelled() {
    let asked;
    const stop = () => (asked ??= fetch(`${url}/ag-cancelled`, { method: "DELETE" }));
    const look = (event) => event.type === "TEXT_MESSAGE_CONTENT" && stop();
    const said = told(await run("ag-cancelled", user("endless"), look));
    return { ...said, status: (await asked).status };
  },
  async resumed() {
    const look = (event, agent) => event.type === "ACTIVITY_DELTA" && agent.abortRun();
    await run("ag-resumed", user("slow"), look);
    // Its agent knows no way back but the one that an application gives it.
    const back = (_, { signal }) => fetch(`${url}/ag-resumed/stream?format=ag-ui`, { signal });
    return told(await run("ag-resumed", user("slow"), undefined, { fetch: back }));
  },
  async gap() {
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ tool: "agent", arguments: { task: "flood", ...forwardedProps } });
    const created = await fetch(`${base}/v1/executions`, { method: "POST", headers, body });
    const { links } = await created.json();
    await (await fetch(`${base}${links.self}/result?wait_ms=60000`)).text();
    const late = (_, { signal }) => fetch(`${base}${links.events}?format=ag-ui`, { signal });
    return told(await run("ag-gap", user("flood"), undefined, { fetch: late }));
  },
};

warnings.splice(0);
for (const [scene, play] of Object.entries(scenes)) {
  const said = await play().catch((error) => ({ thrown: String(error?.stack ?? error) }));
  process.stdout.write(`${JSON.stringify({ scene, ...said })}\n`);
}
