// The SDK's client over mcp-remote, a proxy for hosts that support only stdio.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { asOptions, environment, listAndCall, mode, report } from "./plan.mjs";

await report("mcp-remote", (url, headers, calls) => {
  const proxy = ["node_modules/.bin/mcp-remote", url, "--allow-http", "--silent", "--protocol", mode];
  const args = [...proxy, ...asOptions(headers)];
  return listAndCall(
    new Client({ name: "mcp_remote", version: "0" }),
    new StdioClientTransport({ command: process.execPath, args, env: environment }),
    calls,
  );
});
