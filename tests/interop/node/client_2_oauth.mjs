// The OAuth client of the official TypeScript SDK, version 2.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { signInAndCall } from "./oauth.mjs";
import { report } from "./plan.mjs";

await report(
  "@modelcontextprotocol/client",
  (url, headers, calls) =>
    signInAndCall(
      () => new Client({ name: "client_2", version: "0" }, { versionNegotiation: { mode: "auto" } }),
      (authProvider) => new StreamableHTTPClientTransport(new URL(url), { authProvider }),
      (transport, answer) => transport.finishAuth(answer),
      calls,
      "SDK 2",
    ),
  ", OAuth",
);
