// A client of the package `@langchain/langgraph-sdk` that runs agents of a server over the ordinary
// API of LangGraph, and says what each run was.
//
// node real_graph.mjs FOLDER-OF-NODE_MODULES PACKAGE BASE-URL
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, name, base] = process.argv.slice(2);
const file = join(folder, "node_modules", name, "dist", "index.js");
const { Client } = await import(pathToFileURL(file));
const client = new Client({ apiUrl: `${base}/langgraph`, apiKey: null, callerOptions: { maxRetries: 0 } });

const streamMode = ["values", "updates", "messages-tuple", "tools", "custom"];
const config = { configurable: { tools: ["run_command", "slow_data_processor"] } };
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const ask = (content) => ({ input: { messages: [{ role: "user", content }] }, config, streamMode });

function nothing() {
  return { text: "", reasoning: "", pieces: {}, results: {}, gaps: 0, ends: 0, last: -1, ordered: true, problem: null };
}

// Takes what an event says.
function take(seen, { event, data, id }) {
  if (id !== undefined) {
    seen.ordered &&= Number(id) > seen.last;
    seen.last = Number(id);
  }
  if (event === "metadata") {
    seen.run ??= data.run_id;
    seen.thread ??= data.thread_id;
  } else if (event === "messages" && data[0].type === "AIMessageChunk") {
    seen.text += data[0].content;
    seen.reasoning += data[0].additional_kwargs?.reasoning_content ?? "";
  } else if (event === "messages") {
    seen.results[data[0].tool_call_id] = data[0].content;
  } else if (event === "tools" && data.event === "on_tool_event") {
    seen.pieces[data.toolCallId] = (seen.pieces[data.toolCallId] ?? "") + data.data;
  } else if (event === "custom" && data.type === "gap") {
    seen.gaps += 1;
  } else if (event === "values") {
    seen.values = data;
  } else if (event === "error") {
    seen.problem = data.message;
  } else if (event === "end") {
    seen.ends += 1;
    seen.status = data.status;
  }
}

async function read(stream, seen = nothing(), look = () => {}) {
  for await (const part of stream) {
    take(seen, part);
    if ((await look(part, seen)) === "leave") break;
  }
  return seen;
}

function told({ values, last, ...seen }) {
  const ending = { success: "finished", error: "failed", interrupted: "cancelled" }[seen.status];
  return { ...seen, execution: seen.run, ending, final: values?.messages.at(-1).content };
}

const types = (values) => values.messages.map((message) => message.type);

const scenes = {
  // The example of the package's README.
  async readme() {
    // List all assistants
    const assistants = await client.assistants.search({
      metadata: null,
      offset: 0,
      limit: 10,
    });
    // We auto-create an assistant for each graph you register in config.
    const agent = assistants[0];
    // Start a new thread
    const thread = await client.threads.create();
    // Start a streaming run
    const messages = [{ role: "human", content: "what's the weather in la" }];
    const streamResponse = client.runs.stream(thread["thread_id"], agent["assistant_id"], {
      input: { messages },
    });
    const events = [];
    for await (const chunk of streamResponse) {
      events.push(chunk);
    }
    const last = events.findLast((chunk) => chunk.event === "values").data.messages.at(-1);
    return {
      assistants: assistants.map((assistant) => assistant.assistant_id),
      events: [...new Set(events.map((chunk) => chunk.event))],
      final: last.content,
      got: (await client.assistants.get("demo")).graph_id,
    };
  },
  async whole() {
    const { thread_id } = await client.threads.create();
    let created;
    const seen = await read(client.runs.stream(thread_id, "demo", {
      ...ask("whole"), metadata: { a: 1 }, onRunCreated: (run) => (created = run),
    }));
    const run = await client.runs.get(thread_id, seen.run);
    const state = await client.threads.getState(thread_id);
    const history = await client.threads.getHistory(thread_id);
    const runs = await client.runs.list(thread_id);
    const next = await client.runs.wait(thread_id, "demo", ask("again"));
    const found = await client.threads.search({ ids: [thread_id] });
    const thread = await client.threads.get(thread_id);
    await client.threads.delete(thread_id);
    const gone = await client.threads.search({ ids: [thread_id] });
    return {
      ...told(seen),
      created: created?.run_id === seen.run && created?.thread_id === thread_id,
      about: [run.status, run.metadata, run.thread_id === thread_id, runs.length],
      kept: types(state.values),
      same: JSON.stringify(state.values) === JSON.stringify(seen.values),
      history: history.map((one) => one.next),
      tokens: seen.values.messages.at(-1).usage_metadata?.total_tokens,
      next: next.messages.at(-1).content,
      grown: types(next),
      found: [found.length, found[0].status, thread.status, gone.length],
    };
  },
  async alone() {
    const seen = await read(client.runs.stream(null, "demo", ask("whole")));
    const waited = await client.runs.wait(null, "agent", ask("again"));
    return { ...told(seen), next: waited.messages.at(-1).content, own: seen.thread === seen.run };
  },
  async fails() {
    const seen = await read(client.runs.stream(null, "demo", ask("fails")));
    let said;
    try {
      await client.runs.wait(null, "demo", ask("fails"));
    } catch (error) {
      said = error.message;
    }
    return { ...told(seen), said };
  },
  async cancelled() {
    const { thread_id } = await client.threads.create();
    const run = await client.runs.create(thread_id, "demo", ask("endless"));
    let refused;
    const joined = client.runs.joinStream(thread_id, run.run_id, { streamMode });
    const seen = await read(joined, nothing(), async (part, seen) => {
      if (refused || seen.text === "") return;
      refused = await client.runs.wait(thread_id, "demo", ask("again")).catch((error) => error.status);
      await client.runs.cancel(thread_id, run.run_id);
    });
    const { status } = await client.runs.get(thread_id, run.run_id);
    return { ...told(seen), begun: run.status, state: status, refused };
  },
  async resumed() {
    const { thread_id } = await client.threads.create();
    const leave = (part) => (part.event === "tools" && part.data.event === "on_tool_event" ? "leave" : "");
    const ids = [];
    const note = (part) => void ids.push(part.id);
    const seen = await read(client.runs.stream(thread_id, "demo", ask("slow")), nothing(), (part) => {
      note(part);
      return leave(part);
    });
    const lastEventId = String(seen.last);
    await read(client.runs.joinStream(thread_id, seen.run, { lastEventId, streamMode }), seen, note);
    const joined = await client.runs.join(thread_id, seen.run);
    const again = [];
    await read(client.runs.joinStream(thread_id, seen.run, { streamMode }), nothing(), (part) => {
      again.push(part.id);
    });
    return {
      ...told(seen),
      joined: joined.messages.at(-1).content,
      same: JSON.stringify(ids) === JSON.stringify(again),
    };
  },
  async refused() {
    const status = (promise) => promise.then(() => 200, (error) => error.status);
    const wait = (more, assistant = "demo") => status(client.runs.wait(null, assistant, { ...ask("again"), ...more }));
    return {
      command: await wait({ command: { resume: 1 } }),
      model: await wait({}, "nobody"),
      strategy: await wait({ multitaskStrategy: "rollback" }),
      assistant: await status(client.assistants.get("nobody")),
      run: await status(client.runs.get("t", "0123456789abcdefghjkmnpqrs")),
      mode: await status(read(client.runs.stream(null, "demo", { ...ask("again"), streamMode: "debug" }))),
    };
  },
};

// A scene for somebody who kills the server as soon as it is told to. The package comes back by
// itself.
async function restarted() {
  let shown = "";
  let breaks = 0;
  const stream = client.runs.stream("restarted", "demo", ask("slow"));
  const seen = await read(stream, nothing(), (part, seen) => {
    if (part.event !== "tools" || part.data.event !== "on_tool_event" || breaks) return;
    if (shown === "") console.log(JSON.stringify({ scene: "reached" }));
    shown += part.data.data;
    if (seen.problem) breaks += 1;
  });
  return { ...told(seen), shown };
}

const plays = process.env.SCENE === "restarted" ? { restarted } : scenes;
for (const [scene, play] of Object.entries(plays)) {
  const said = await play().catch((error) => ({ thrown: `${error.stack}` }));
  console.log(JSON.stringify({ scene, ...said }));
}
process.exit(0);
