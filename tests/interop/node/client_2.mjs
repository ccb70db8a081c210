// The official TypeScript SDK's client, version 2, which requests the newest protocol first.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { listAndCall, report } from "./plan.mjs";

await report("@modelcontextprotocol/client", (url, headers, calls) =>
  listAndCall(
    new Client({ name: "client_2", version: "0" }, { versionNegotiation: { mode: "auto" } }),
    new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }),
    calls,
  ),
);
