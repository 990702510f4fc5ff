// A client of the package `@a2a-js/sdk` that sends messages to a server, and says what each task
// was.
//
// node real_a2a.mjs FOLDER-OF-NODE_MODULES BASE-URL BINDING
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { randomUUID } from "node:crypto";

const [folder, base, binding] = process.argv.slice(2);
const file = join(folder, "node_modules", "@a2a-js", "sdk", "dist", "client", "index.js");
const { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } = await import(pathToFileURL(file));
const transports = [binding === "JSONRPC" ? new JsonRpcTransportFactory() : new RestTransportFactory()];
const client = await new ClientFactory({ transports }).createFromUrl(base);

const tools = ["run_command", "slow_data_processor"];
const ROLE_USER = 1;
const part = (text) => ({ content: { $case: "text", value: text }, mediaType: "", filename: "", metadata: undefined });
const ask = (text, contextId = "") => ({
  tenant: "",
  message: {
    messageId: randomUUID(), contextId, taskId: "", role: ROLE_USER, parts: [part(text)],
    metadata: { tools }, extensions: [], referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: undefined,
});

function nothing() {
  return { artifacts: new Map(), gaps: 0, tasks: 0, states: [] };
}

function add(seen, artifact, isMore) {
  if (isMore) seen.artifacts.get(artifact.artifactId).parts.push(...artifact.parts);
  else seen.artifacts.set(artifact.artifactId, { ...artifact, parts: [...artifact.parts] });
}

function take(seen, event) {
  const { $case, value } = event.payload;
  if ($case === "artifactUpdate") return add(seen, value.artifact, value.append);
  if ($case === "task") {
    seen.tasks += 1;
    seen.execution = value.id;
    seen.context = value.contextId;
    seen.artifacts = new Map();
    for (const artifact of value.artifacts) add(seen, artifact, false);
  } else if (value.metadata?.gap) seen.gaps += 1;
  if (seen.states.at(-1) !== value.status.state) seen.states.push(value.status.state);
  seen.problem = value.status.message?.parts.map((one) => one.content.value).join("") ?? "";
}

async function read(stream, seen = nothing(), look = () => {}) {
  for await (const event of stream) {
    take(seen, event);
    if ((await look(seen)) === "leave") break;
  }
  return seen;
}

function texts(artifacts, kind) {
  const of = artifacts.filter((artifact) => artifact.metadata.kind === kind);
  return of.flatMap((artifact) => artifact.parts).map((one) => (one.content.$case === "text" ? one.content.value : "")).join("");
}

function told({ artifacts, ...seen }) {
  const all = [...artifacts.values()];
  const calls = all.filter((artifact) => artifact.metadata.kind === "tool");
  const pieces = Object.fromEntries(calls.map((one) => [one.artifactId.split("-").slice(2).join("-"), texts([one], "tool")]));
  return { ...seen, text: texts(all, "text"), reasoning: texts(all, "reasoning"), pieces };
}

const scenes = {
  async whole() {
    const seen = await read(client.sendMessageStream(ask("whole")));
    const task = await client.getTask({ tenant: "", id: seen.execution });
    const next = await client.sendMessage(ask("again", seen.context));
    const all = next.task?.artifacts ?? next.artifacts ?? next.payload?.value.artifacts;
    return { ...told(seen), kept: texts(task.artifacts, "text"), next: texts(all, "text") };
  },
  async fails() {
    return told(await read(client.sendMessageStream(ask("fails"))));
  },
  async cancelled() {
    let answer;
    const seen = await read(client.sendMessageStream(ask("endless")), nothing(), async (seen) => {
      if (answer !== undefined || seen.artifacts.size === 0) return;
      answer = (await client.cancelTask({ tenant: "", id: seen.execution, metadata: undefined })).status.state;
    });
    return { ...told(seen), answer };
  },
  async resumed() {
    const hasOutput = (seen) => (texts([...seen.artifacts.values()], "tool") ? "leave" : "");
    const first = await read(client.sendMessageStream(ask("slow")), nothing(), hasOutput);
    return told(await read(client.resubscribeTask({ tenant: "", id: first.execution })));
  },
};

for (const [scene, play] of Object.entries(scenes)) {
  const said = await play().catch((error) => ({ thrown: `${error.stack}` }));
  console.log(JSON.stringify({ scene, ...said }));
}
process.exit(0);
