// The TypeScript client of Durable Streams: writes and reads streams, also across restarts.
//
// node typescript.mjs FOLDER-OF-NODE_MODULES BASE-URL SCENE
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, base, scene] = process.argv.slice(2);
const file = createRequire(`${folder}/`).resolve("@durable-streams/client");
const { DurableStream, IdempotentProducer, stream } = await import(pathToFileURL(file));

const MESSAGES = 400;
const json = "application/json";
const url = (name) => `${base}/v1/stream/typescript/${name}`;
const say = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const range = (count) => Array.from({ length: count }, (_, n) => n);

// Sends a request again until it is answered: the producer leaves this to its user.
async function persistent(...request) {
  for (;;) {
    try {
      return await fetch(...request);
    } catch {
      await sleep(20);
    }
  }
}

// Subscribes, and waits until the subscriber has got the batch with the end: the promise `closed`
// can be resolved before. (If the last SSE event has no `upToDate`, no batch has the end.) Rejects
// when the response breaks; no later batch is given then.
async function consume(response, method, subscriber) {
  let isOver = false;
  const last = new Promise((resolve) => {
    response[method]((batch) => {
      if (isOver) return;
      subscriber(batch);
      if (batch.streamClosed) resolve();
    });
  });
  const isClosed = response.closed.then(() => Promise.race([last, sleep(1000)]));
  await isClosed.finally(() => (isOver = true));
}

// Follows a stream of JSON to its end. A broken SSE response ends the reader of this client, so a
// new one begins at the last offset.
async function follow(name, live) {
  const items = [];
  let offset = "-1";
  for (let breaks = 0; ; breaks += 1) {
    try {
      const response = await stream({ url: url(name), offset, live, warnOnHttp: false });
      await consume(response, "subscribeJson", (batch) => {
        items.push(...batch.items);
        offset = batch.offset;
      });
      return { items, breaks };
    } catch (error) {
      if (error.status) throw error; // An answer, and not a broken connection.
    }
  }
}

async function read(name) {
  const response = await stream({ url: url(name), live: false, warnOnHttp: false });
  return response.json();
}

const create = (name, contentType, more = {}) =>
  DurableStream.create({ url: url(name), contentType, warnOnHttp: false, ...more });

const scenes = {
  // Everything that the client has, on a server that stays.
  async whole() {
    const words = await create("words", "text/plain", { body: "one " });
    await words.append("two ");
    await words.append("three");
    const first = await stream({ url: url("words"), live: false, warnOnHttp: false });
    assert.equal(await first.text(), "one two three");
    assert.equal(first.upToDate, true);
    const { offset, contentType, exists } = await words.head();
    assert.deepEqual([offset, contentType, exists], [first.offset, "text/plain", true]);
    await words.append("!");
    const rest = await stream({ url: url("words"), offset, live: false, warnOnHttp: false });
    assert.equal(await rest.text(), "!");

    // Messages of JSON stay what they were: an array is one message.
    const values = [{ n: 1 }, [1, [2]], "text, with: {commas}", 1.5, true, null];
    const typed = await create("values", json);
    for (const value of values) await typed.append(JSON.stringify(value));
    assert.deepEqual(await read("values"), values);

    // Bytes, through SSE as base64.
    const bytes = await create("bytes", "application/octet-stream");
    const all = Uint8Array.from(range(256));
    const live = await stream({ url: url("bytes"), live: "sse", warnOnHttp: false });
    const got = [];
    const isRead = consume(live, "subscribeBytes", (chunk) => got.push(...chunk.data));
    await sleep(100); // It has caught up, and follows.
    await bytes.append(all);
    await bytes.close();
    await isRead;
    assert.deepEqual(Uint8Array.from(got), all);

    // The order of a writer.
    const ordered = await create("ordered", json);
    await ordered.append("1", { seq: "001" });
    await assert.rejects(ordered.append("1", { seq: "001" }), { status: 409 });
    await ordered.append("2", { seq: "002" });
    assert.deepEqual(await read("ordered"), [1, 2]);

    // A producer whose batches are under way at the same time, with two kinds of readers.
    const exact = await create("exact", json);
    const readers = ["long-poll", "sse"].map((live) => follow("exact", live));
    const producer = new IdempotentProducer(exact, "p", { lingerMs: 1, maxBatchBytes: 40 });
    for (const n of range(500)) producer.append(JSON.stringify({ n }));
    await producer.flush();
    const closed = await producer.close(JSON.stringify({ n: 500 }));
    const expected = range(501).map((n) => ({ n }));
    for (const { items, breaks } of await Promise.all(readers)) {
      assert.deepEqual([items, breaks], [expected, 0]);
    }
    assert.deepEqual(await read("exact"), expected);
    assert.equal((await exact.head()).offset, closed.finalOffset);
    await assert.rejects(exact.append("501"), { status: 409 });

    // A newer producer of the same name fences the older one, which may claim the name again.
    const fenced = await create("fenced", json);
    const errors = [];
    const older = new IdempotentProducer(fenced, "p", { onError: (error) => errors.push(error.name) });
    const append = async (producer, text) => {
      producer.append(text);
      await producer.flush();
    };
    await append(older, "1");
    await append(new IdempotentProducer(fenced, "p", { epoch: 1 }), "2");
    await append(older, "3");
    assert.deepEqual(errors, ["StaleEpochError"]);
    await append(new IdempotentProducer(fenced, "p", { autoClaim: true }), "4");
    assert.deepEqual(await read("fenced"), [1, 2, 4]);

    await words.delete();
    assert.equal((await words.head()).exists, false);
    say({ done: true });
  },

  // A producer and its readers, while somebody kills the server again and again.
  async across() {
    const exact = await create("exact-across", json);
    const plain = await create("plain-across", json);
    const readers = ["long-poll", "sse"].map((live) => follow("exact-across", live));
    const errors = [];
    const producer = new IdempotentProducer(exact, "p", {
      lingerMs: 1,
      maxBatchBytes: 64,
      fetch: persistent,
      onError: (error) => errors.push(String(error)),
    });
    for (const n of range(MESSAGES)) {
      producer.append(String(n));
      await plain.append(String(n));
      if (n % 20 === 19) {
        await producer.flush();
        say({ reached: n });
      }
    }
    await producer.close();
    const [longPoll, sse] = await Promise.all(readers);
    say({
      done: true,
      messages: MESSAGES,
      exact: { "long-poll": longPoll.items, sse: sse.items, again: await read("exact-across") },
      plain: await read("plain-across"),
      errors,
      breaks: [longPoll.breaks, sse.breaks],
    });
  },
};

await scenes[scene]();
process.exit(0); // Connections that are kept would keep the process.
