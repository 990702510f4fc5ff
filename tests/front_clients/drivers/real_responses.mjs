// A client of the package `openai` that runs agents of a server, and says what each response was.
//
// node real_responses.mjs FOLDER-OF-NODE_MODULES BASE-URL
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, base] = process.argv.slice(2);
const file = join(folder, "node_modules", "openai", "index.mjs");
const { OpenAI } = await import(pathToFileURL(file));
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });

const allowed_tools = ["run_command", "slow_data_processor"];
const include = ["streamdoor:events"];
const tools = [{ type: "mcp", server_label: "streamdoor", allowed_tools }];
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function nothing() {
  return { text: "", reasoning: "", pieces: {}, gaps: 0, ends: 0, last: -1, ordered: true };
}

// Takes what an event says.
function take(seen, event) {
  seen.ordered &&= event.sequence_number > seen.last;
  seen.last = event.sequence_number;
  const call = () => event.item_id.split("_").slice(2).join("_");
  switch (event.type) {
    case "response.created":
      seen.id ??= event.response.id;
      break;
    case "response.output_text.delta":
      seen.text += event.delta;
      break;
    case "response.reasoning_text.delta":
      seen.reasoning += event.delta;
      break;
    case "streamdoor:tool_output.delta":
      seen.pieces[call()] = (seen.pieces[call()] ?? "") + event.delta;
      break;
    case "streamdoor:gap":
      seen.gaps += 1;
      break;
    case "response.completed":
    case "response.incomplete":
    case "response.failed":
      seen.ends += 1;
      seen.response = event.response;
  }
  return seen;
}

async function read(stream, seen = nothing(), look = () => {}) {
  for await (const event of stream) {
    take(seen, event);
    if (look(event, seen) === "leave") break;
  }
  return seen;
}

function told({ response, last, ...seen }) {
  const status = response?.status;
  const ending = { completed: "finished", failed: "failed", cancelled: "cancelled" }[status];
  const calls = (response?.output ?? []).filter((item) => item.type === "mcp_call");
  const results = Object.fromEntries(calls.map((item) => [item.id.slice(6), item.output]));
  const problem = response?.error?.message ?? null;
  return { ...seen, execution: seen.id?.slice(5), status, ending, results, problem };
}

const scenes = {
  async whole() {
    const stream = await client.responses.create({ model: "demo", input: "whole", tools, include, stream: true });
    const seen = await read(stream);
    const { output, usage } = seen.response;
    const asked = { role: "user", content: "whole" };
    const again = { role: "user", content: "again" };
    const next = await client.responses.create({ model: "demo", input: [asked, ...output, again] });
    const after = await client.responses.create({
      model: "demo", input: "again", previous_response_id: seen.id, instructions: "Be kind.",
    });
    const items = await client.responses.inputItems.list(after.id, { order: "asc" });
    const inputs = [];
    for await (const item of items) inputs.push([item.role ?? item.type, item.content?.[0].text]);
    // The package adds the text.
    const { output_text, ...kept } = await client.responses.retrieve(seen.id);
    const same = JSON.stringify(kept) === JSON.stringify(seen.response);
    const echoed = [after.previous_response_id === seen.id, after.instructions];
    return {
      ...told(seen), next: next.output_text, after: after.output_text, inputs, same, echoed,
      tokens: usage.total_tokens,
    };
  },

  // The helper of the package keeps a response of its own. It refuses events that it does not know.
  async helper() {
    const stream = client.responses.stream({ model: "demo", input: "whole", tools });
    const seen = nothing();
    stream.on("event", (event) => take(seen, event));
    const final = await stream.finalResponse();
    return { ...told(seen), texts: final.output_text };
  },

  async fails() {
    const stream = await client.responses.create({ model: "demo", input: "fails", tools, include, stream: true });
    const seen = await read(stream);
    const plain = await client.responses.create({ model: "demo", input: "fails", tools });
    return { ...told(seen), plain: plain.status, said: plain.error?.message };
  },

  async cancelled() {
    const asked = { model: "demo", input: "endless", stream: true, background: true };
    let cancelled;
    const seen = await read(await client.responses.create(asked), nothing(), (event, { id }) => {
      if (event.type !== "response.output_text.delta" || cancelled) return;
      cancelled = client.responses.cancel(id);
    });
    const { status, output } = await cancelled;
    const output_text = output[0].content[0].text;
    const again = await client.responses.cancel(seen.id);
    return { ...told(seen), said: status, again: again.status, output_text };
  },

  async resumed() {
    const asked = { model: "demo", input: "slow", tools, include, stream: true, background: true };
    let count = 0;
    const seen = await read(await client.responses.create(asked), nothing(), (event) => {
      count += event.type === "streamdoor:tool_output.delta";
      if (count === 2) return "leave";
    });
    const early = await client.responses.retrieve(seen.id);
    const rest = await client.responses.retrieve(seen.id, { stream: true, starting_after: seen.last, include });
    await read(rest, seen);
    return { ...told(seen), early: early.status };
  },

  async background() {
    const asked = { model: "agent", input: "slow", tools, background: true, metadata: { a: "b" } };
    let response = await client.responses.create(asked);
    const statuses = [response.status];
    while (["queued", "in_progress"].includes(response.status)) {
      await sleep(100);
      response = await client.responses.retrieve(response.id);
      if (statuses.at(-1) !== response.status) statuses.push(response.status);
    }
    const { id, output_text, metadata, background } = response;
    await client.responses.delete(id);
    const gone = await client.responses.retrieve(id).catch((error) => [error.status, error.code]);
    return { statuses, output_text, metadata, background, gone };
  },

  async refused() {
    const refusal = (asked) => client.responses.create({ model: "demo", input: "x", ...asked })
      .then(() => null, (error) => [error.status, error.code]);
    return {
      tool_choice: await refusal({ tool_choice: "required" }),
      model: await refusal({ model: "nobody" }),
      previous: await refusal({ previous_response_id: `resp_${"7".repeat(26)}` }),
      strange: await refusal({ previous_response_id: "x" }),
    };
  },

  // The server is killed after some output, and comes back.
  async restarted() {
    const asked = { model: "demo", input: "slow", tools, include, stream: true, background: true };
    const seen = nothing();
    let shown = "";
    const look = () => {
      const piece = seen.pieces.call_1;
      if (piece && !shown) {
        shown = piece;
        console.log(JSON.stringify({ scene: "reached" }));
      }
    };
    let breaks = 0;
    let stream = await client.responses.create(asked);
    for (;;) {
      await read(stream, seen, look).catch(() => {});
      if (seen.ends > 0) break;
      breaks += 1;
      const after = { stream: true, starting_after: seen.last, include };
      for (;;) {
        stream = await client.responses.retrieve(seen.id, after).catch(() => null);
        if (stream) break;
        await sleep(50);
      }
    }
    return { ...told(seen), shown, breaks };
  },
};

const wanted = process.env.SCENE ? [process.env.SCENE] : Object.keys(scenes).slice(0, -1);
await Promise.all(wanted.map(async (scene) => {
  const said = await scenes[scene]().catch((error) => ({ thrown: String(error?.stack ?? error) }));
  console.log(JSON.stringify({ scene, ...said }));
}));
