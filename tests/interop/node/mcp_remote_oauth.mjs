// The SDK's client over mcp-remote, which signs in with OAuth if it gets no header.
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { environment, listAndCall, report } from "./plan.mjs";

await report(
  "mcp-remote",
  (url, headers, calls) => {
    const args = ["node_modules/.bin/mcp-remote", url, "--allow-http"];
    // It keeps tokens in this folder: a new one makes it start from nothing.
    const env = { ...environment, MCP_REMOTE_CONFIG_DIR: mkdtempSync(join(tmpdir(), "remote-")) };
    return listAndCall(
      new Client({ name: "mcp_remote", version: "0" }),
      new StdioClientTransport({ command: process.execPath, args, env }),
      calls,
    );
  },
  ", OAuth",
);
