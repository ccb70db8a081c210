// The TypeScript SDK's server on Node's own HTTP server: stateless, JSON responses, no keys.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, path] = process.argv.slice(2);
const find = createRequire(`${folder}/package.json`).resolve;
const load = async (name) => import(pathToFileURL(find(`@modelcontextprotocol/sdk/${name}`)));
const { Server } = await load("server/index.js");
const { StreamableHTTPServerTransport } = await load("server/streamableHttp.js");
const { CallToolRequestSchema } = await load("types.js");
const answers = JSON.parse(readFileSync(path, "utf8"));
const tools = {
  signals_get_state: ({ ticker }) => answers[ticker === undefined ? "state" : "state of one"],
};

createServer(async (request, response) => {
  const server = new Server({ name: "typescript", version: "0" }, { capabilities: { tools: {} } });
  server.setRequestHandler(CallToolRequestSchema, ({ params }) => {
    const answer = tools[params.name](params.arguments ?? {});
    return { content: [{ type: "text", text: JSON.stringify(answer) }], structuredContent: answer };
  });
  const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true });
  response.on("close", () => server.close());
  await server.connect(transport);
  await transport.handleRequest(request, response);
}).listen(Number(process.env.SIGNALS_PORT), "127.0.0.1");
