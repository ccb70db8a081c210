// Inspector over the service's stdio bridge, registered in a file as hosts do it.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "./inspected.mjs";
import { BRIDGE, mode, report } from "./plan.mjs";

// Other clients may run at the same time.
const folder = mkdtempSync(join(tmpdir(), "inspector-"));
const file = join(folder, "inspector.json");

await report("@modelcontextprotocol/inspector", (url, headers, calls, [command, ...args]) => {
  const api_key = headers.Authorization?.replace("Bearer ", "");
  writeFileSync(file, JSON.stringify({ mcpServers: { signals: { command, args } } }));
  const key = api_key ? ["-e", `SIGNALS_API_KEY=${api_key}`] : [];
  const target = ["--config", file, "--server", "signals", "--protocol-era", mode];
  return inspect([...target, ...key], calls);
}, BRIDGE);
rmSync(folder, { recursive: true });
