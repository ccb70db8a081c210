// Inspector over HTTP.
import { inspect } from "./inspected.mjs";
import { asOptions, report } from "./plan.mjs";

await report("@modelcontextprotocol/inspector", (url, headers, calls) =>
  inspect([url, "--transport", "http", ...asOptions(headers)], calls),
);
