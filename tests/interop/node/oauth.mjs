// Shared code of the OAuth clients: a provider whose browser the test drives.
import { once } from "node:events";
import { createServer } from "node:http";
import { listAndCall } from "./plan.mjs";

class Provider {
  kept = {};
  clientMetadataUrl = process.env.CLIENT_METADATA_URL;

  constructor(server, clientName) {
    this.redirectUrl = `http://localhost:${server.address().port}/callback`;
    this.clientMetadata = { client_name: clientName, redirect_uris: [this.redirectUrl] };
  }
  state = () => "state-of-the-client";
  clientInformation = () => this.kept.client;
  saveClientInformation = (client) => void (this.kept.client = client);
  tokens = () => this.kept.tokens;
  saveTokens = (tokens) => void (this.kept.tokens = tokens);
  codeVerifier = () => this.kept.verifier;
  saveCodeVerifier = (verifier) => void (this.kept.verifier = verifier);
  saveDiscoveryState = (discovered) => void (this.kept.discovered = discovered);
  discoveryState = () => this.kept.discovered;
  redirectToAuthorization = (url) => console.error(String(url));
}

// `finish` takes the transport and the parameters that the server sent back.
export async function signInAndCall(createClient, createTransport, finish, calls, clientName) {
  const server = createServer().listen(0, "localhost");
  await once(server, "listening");
  const provider = new Provider(server, clientName);
  const answered = new Promise((resolve) => {
    server.on("request", (request, response) => {
      const { pathname, searchParams } = new URL(request.url, provider.redirectUrl);
      response.setHeader("Content-Type", "text/html").end("<h1>Connected</h1>");
      if (pathname === "/callback") resolve(searchParams);
    });
  });
  const transport = createTransport(provider);
  await createClient().connect(transport).then(
    () => {
      throw new Error("connected without a sign-in");
    },
    (error) => {
      if (error.name !== "UnauthorizedError" && error.constructor.name !== "UnauthorizedError") throw error;
    },
  );
  await finish(transport, await answered);
  const result = await listAndCall(createClient(), createTransport(provider), calls);
  server.close();
  server.closeAllConnections();
  return result;
}
