// The OAuth client of the official TypeScript SDK, version 1.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { signInAndCall } from "./oauth.mjs";
import { report } from "./plan.mjs";

await report(
  "@modelcontextprotocol/sdk",
  (url, headers, calls) =>
    signInAndCall(
      () => new Client({ name: "sdk_1", version: "0" }),
      (authProvider) => new StreamableHTTPClientTransport(new URL(url), { authProvider }),
      (transport, answer) => transport.finishAuth(answer.get("code")),
      calls,
      "SDK 1",
    ),
  ", OAuth",
);
