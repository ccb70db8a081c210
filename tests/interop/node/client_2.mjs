// The official TypeScript SDK's client, version 2. Modes other than auto and legacy pin a version.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { listAndCall, mode, report } from "./plan.mjs";

const versionNegotiation = { mode: ["auto", "legacy"].includes(mode) ? mode : { pin: mode } };

await report("@modelcontextprotocol/client", (url, headers, calls) =>
  listAndCall(
    new Client({ name: "client_2", version: "0" }, { versionNegotiation }),
    new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }),
    calls,
  ),
);
