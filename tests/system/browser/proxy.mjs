// A reverse proxy that serves the broker's HTTP port under a path, and nothing else.
import { once } from "node:events";
import { createServer, request } from "node:http";

/** Serves `target` under `path`. Passes the path on if `keeps` is set, otherwise strips it; always passes the Host header on. */
export async function proxy(target, path, keeps) {
  const server = createServer((incoming, answer) => {
    if (!incoming.url.startsWith(`${path}/`)) {
      answer.writeHead(404).end();
      return;
    }
    const { method, headers } = incoming;
    const url = target + (keeps ? incoming.url : incoming.url.slice(path.length));
    const outgoing = request(url, { method, headers }, (response) => {
      answer.writeHead(response.statusCode, response.headers);
      response.pipe(answer);
    });
    outgoing.on("error", () => answer.destroy());
    answer.on("close", () => outgoing.destroy());
    incoming.pipe(outgoing);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const stop = async () => {
    server.close();
    server.closeAllConnections();
    await once(server, "close");
  };
  return { http: `http://127.0.0.1:${server.address().port}`, stop };
}
