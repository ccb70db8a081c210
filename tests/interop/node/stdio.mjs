// The SDK's client over the service's bridge for hosts that support only stdio.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { BRIDGE, environment, listAndCall, report } from "./plan.mjs";

await report("@modelcontextprotocol/sdk", (url, headers, calls, [command, ...args]) => {
  const api_key = headers.Authorization?.replace("Bearer ", "") ?? "";
  const env = { ...environment, SIGNALS_API_KEY: api_key };
  return listAndCall(
    new Client({ name: "stdio", version: "0" }),
    new StdioClientTransport({ command, args, env }),
    calls,
  );
}, BRIDGE);
