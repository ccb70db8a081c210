// Shared code of the clients: read the plan, run each session, write the report.
import { readFileSync } from "node:fs";
import { json } from "node:stream/consumers";

// Files that a client writes to the home folder go next to the packages.
export const environment = { ...process.env, HOME: import.meta.dirname };

// The mode in which a client negotiates the protocol, for clients that have several.
export const mode = process.argv[2];

// A mark in the table of clients for those that use the service's stdio bridge.
export const BRIDGE = ", over `signals stdio`";

export const asOptions = (headers) =>
  Object.entries(headers).flatMap(([name, value]) => ["--header", `${name}: ${value}`]);

export async function report(client, session, way = "") {
  const plan = await json(process.stdin);
  const sessions = [];
  for (const { api_key, calls } of plan.sessions) {
    const headers = api_key ? { Authorization: `Bearer ${api_key}` } : {};
    sessions.push(await session(plan.url, headers, calls, plan.bridge));
  }
  const { version } = JSON.parse(readFileSync(`node_modules/${client}/package.json`));
  const name = client + (mode ? `, mode ${mode}` : "") + way;
  console.log(JSON.stringify({ client: name, version, sessions }));
}

export async function listAndCall(client, transport, calls) {
  // A proxy answers only once its user has signed in.
  await client.connect(transport, { timeout: 600_000 });
  const { tools } = await client.listTools();
  const results = [];
  for (const call of calls) {
    results.push(toEntry(await client.callTool({ name: call.tool, arguments: call.arguments })));
  }
  await client.close();
  return { tools: tools.map((tool) => tool.name), results };
}

export const toEntry = (result) => ({
  is_error: result.isError ?? false,
  text: result.content[0].text,
  structured: result.structuredContent ?? null,
});
