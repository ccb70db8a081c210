// Runs Inspector's command line, one process per call.
import { spawnSync } from "node:child_process";
import { environment, toEntry } from "./plan.mjs";

const IS_ERROR = 5;
// Inspector prints where it stores a given key; that is not an error of the server.
const ABOUT_SECRETS = /secret|keychain/i;

function inspected(target, ...method) {
  const command = ["node_modules/.bin/inspector", "--cli", ...target, "--format", "json"];
  const done = spawnSync(process.execPath, [...command, "--method", ...method], {
    env: environment,
    encoding: "utf8",
  });
  if (done.status !== 0 && done.status !== IS_ERROR) throw new Error(done.stderr);
  const said = done.stderr.split("\n").filter((line) => line && !ABOUT_SECRETS.test(line));
  return [JSON.parse(done.stdout).result, said.join("\n")];
}

export function inspect(target, calls) {
  const [{ tools }, complaints] = inspected(target, "tools/list", "--strict");
  if (complaints) throw new Error(complaints);
  const results = calls.map(({ tool, arguments: given }) => {
    const args = ["--tool-name", tool, "--tool-args-json", JSON.stringify(given)];
    return toEntry(inspected(target, "tools/call", ...args)[0]);
  });
  return { tools: tools.map((tool) => tool.name), results };
}
