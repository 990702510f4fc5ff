// Parses events of AG-UI with the schemas of its own packages, and says what they refuse or strip.
//
// node ag_ui_schemas.mjs FOLDER-OF-NODE_MODULES < one line a run: {run, input, events}
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";

const [folder] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { EventSchemas, RunAgentInputSchema } = require("@ag-ui/core/schemas");
const { enforceEvents, verifyEvents } = require("@ag-ui/client");
const { from, lastValueFrom, toArray } = require("rxjs");

const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));

async function check({ input, events }) {
  const problems = [];
  let parsed = 0;
  for (const event of events) {
    const read = EventSchemas.safeParse(event);
    if (!read.success) problems.push({ event, refused: read.error.issues });
    else if (!isDeepStrictEqual(read.data, event)) problems.push({ event, stripped: read.data });
    else parsed += 1;
  }
  if (input && input.protocolVersion === "1.0") {
    const read = RunAgentInputSchema.safeParse(input);
    if (!read.success) problems.push({ input, refused: read.error.issues });
  }
  // What the client does with each stream before its application sees it.
  const seen = from(events).pipe(enforceEvents(), verifyEvents(), toArray());
  const kept = await lastValueFrom(seen).catch((error) => problems.push(String(error)));
  if (Array.isArray(kept) && !isDeepStrictEqual(kept, events)) problems.push("enforced to others");
  problems.push(...warnings.splice(0));
  return { parsed, problems };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { run, ...said } = JSON.parse(line);
  process.stdout.write(`${JSON.stringify({ run, ...(await check(said)) })}\n`);
}
