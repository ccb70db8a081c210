// Inspector over HTTP.
import { inspect } from "./inspected.mjs";
import { asOptions, mode, report } from "./plan.mjs";

await report("@modelcontextprotocol/inspector", (url, headers, calls) =>
  inspect([url, "--transport", "http", "--protocol-era", mode, ...asOptions(headers)], calls),
);
