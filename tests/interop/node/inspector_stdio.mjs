// Inspector over the service's stdio bridge, registered in a file as hosts do it.
import { writeFileSync } from "node:fs";
import { inspect } from "./inspected.mjs";
import { BRIDGE, mode, report } from "./plan.mjs";

const FILE = "inspector.json";

await report("@modelcontextprotocol/inspector", (url, headers, calls, [command, ...args]) => {
  const api_key = headers.Authorization?.replace("Bearer ", "");
  writeFileSync(FILE, JSON.stringify({ mcpServers: { signals: { command, args } } }));
  const key = api_key ? ["-e", `SIGNALS_API_KEY=${api_key}`] : [];
  const target = ["--config", FILE, "--server", "signals", "--protocol-era", mode];
  return inspect([...target, ...key], calls);
}, BRIDGE);
