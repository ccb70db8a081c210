// What all clients here do: read the plan, follow it session by session, write the report.
import { readFileSync } from "node:fs";
import { json } from "node:stream/consumers";

// What a client leaves in its user's home stays beside the packages.
export const environment = { ...process.env, HOME: import.meta.dirname };

// How the table of clients tells those that come over the service's own bridge.
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
  console.log(JSON.stringify({ client: client + way, version, sessions }));
}

export async function listAndCall(client, transport, calls) {
  await client.connect(transport);
  const { tools } = await client.listTools();
  const results = [];
  for (const call of calls) {
    results.push(told(await client.callTool({ name: call.tool, arguments: call.arguments })));
  }
  await client.close();
  return { tools: tools.map((tool) => tool.name), results };
}

export const told = (result) => ({
  is_error: result.isError ?? false,
  text: result.content[0].text,
  structured: result.structuredContent ?? null,
});
