// A web host of MCP Apps: the official bridge between a view in a sandbox and the official client.
import { AppBridge, getToolUiResourceUri, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const HOST = { name: "chat_host", version: "0" };
const EXTENSIONS = { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } };

// Calls a tool as a model would, and shows its result in the view that the tool names.
window.showResult = async ({ url, sandbox, key, mode, tool, input, theme }) => {
  const headers = { Authorization: `Bearer ${key}` };
  const client = new Client(HOST, { capabilities: { extensions: EXTENSIONS }, versionNegotiation: { mode } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  const { tools } = await client.listTools();
  const uri = getToolUiResourceUri(tools.find(each => each.name === tool));
  const { contents: [{ text, _meta }] } = await client.readResource({ uri });

  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-same-origin");
  document.body.replaceChildren(frame);
  window.bridge = new AppBridge(client, HOST, { serverTools: {} }, { hostContext: { theme } });
  const ready = new Promise(resolve => { bridge.onsandboxready = resolve; });
  const initialized = new Promise(resolve => { bridge.oninitialized = resolve; });
  bridge.onsizechange = ({ height }) => { frame.style.height = `${height}px`; };
  frame.src = sandbox;
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  await ready;
  await bridge.sendSandboxResourceReady({ html: text, csp: _meta.ui.csp });
  await initialized;
  await bridge.sendToolInput({ arguments: input });
  await bridge.sendToolResult(await client.callTool({ name: tool, arguments: input }));
  return { uri, csp: _meta.ui.csp, tools: tools.map(each => each.name) };
};
