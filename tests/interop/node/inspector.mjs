// Inspector's command line, a process for each call.
import { spawnSync } from "node:child_process";
import { asOptions, environment, report, told } from "./plan.mjs";

const IS_ERROR = 5;

function inspected(url, headers, ...method) {
  const command = ["node_modules/.bin/inspector", "--cli", url, "--transport", "http"];
  const options = [...asOptions(headers), "--format", "json", "--method", ...method];
  const done = spawnSync(process.execPath, [...command, ...options], {
    env: environment,
    encoding: "utf8",
  });
  if (done.status !== 0 && done.status !== IS_ERROR) throw new Error(done.stderr);
  return [JSON.parse(done.stdout).result, done.stderr];
}

await report("@modelcontextprotocol/inspector", (url, headers, calls) => {
  const [{ tools }, complaints] = inspected(url, headers, "tools/list", "--strict");
  if (complaints) throw new Error(complaints);
  const results = calls.map(({ tool, arguments: given }) => {
    const args = ["--tool-name", tool, "--tool-args-json", JSON.stringify(given)];
    return told(inspected(url, headers, "tools/call", ...args)[0]);
  });
  return { tools: tools.map((tool) => tool.name), results };
});
