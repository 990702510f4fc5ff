// The reference server of Durable Streams, for one run of `bench streams --impl node`.
//
// node node.mjs FOLDER-OF-NODE_MODULES PORT [DIRECTORY]
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, port, dataDir] = process.argv.slice(2);
const file = createRequire(`${resolve(folder)}/`).resolve("@durable-streams/server");
const { DurableStreamTestServer } = await import(pathToFileURL(file));
const options = { port: Number(port), host: "127.0.0.1", dataDir, compression: false };
await new DurableStreamTestServer(options).start();
