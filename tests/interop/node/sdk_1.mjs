// The official TypeScript SDK's client, version 1.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { listAndCall, report } from "./plan.mjs";

await report("@modelcontextprotocol/sdk", (url, headers, calls) =>
  listAndCall(
    new Client({ name: "sdk_1", version: "0" }),
    new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }),
    calls,
  ),
);
