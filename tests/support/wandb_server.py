"""As much of a wandb server as a run, or `wandb sync`, needs: it keeps what it is told, and can be
told to misbehave.
"""

import contextlib
import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OWNER = {"id": "p", "name": "posbench", "entity": {"id": "e", "name": "me"}}


class WandbServer(ThreadingHTTPServer):
    """`runs` maps a run's id to what arrived of it: settings, history (lines), files (name ->
    bytes), artifacts, exitcode.

    `behave` is called with each request's path and may sleep, raise to break the connection, or
    return another HTTP status."""

    daemon_threads = True

    def __init__(self, behave=lambda path: 200):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave = behave
        self.runs: dict[str, dict] = {}
        self.requests = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # a client that was killed, or a connection broken on purpose

    def run(self, name: str) -> dict:
        return self.runs.setdefault(
            name,
            {
                "settings": {},
                "history": [],
                "summary": {},
                "files": {},
                "artifacts": [],
                "exitcode": None,
            },
        )

    def answer(self, path: str, body: bytes) -> dict:
        if path.endswith("/graphql"):
            request = json.loads(body)
            return {"data": self.query(request["query"], request.get("variables") or {})}
        if path.endswith("/file_stream"):
            self.stream(self.run(path.split("/")[-2]), json.loads(body))
        elif path.startswith("/upload/"):
            _, _, name, file = path.split("/", 3)
            self.run(name)["files"][file] = body
        return {}

    def stream(self, run: dict, content: dict) -> None:
        for file, chunk in (content.get("files") or {}).items():
            lines = [json.loads(line) for line in chunk["content"]]
            if file == "wandb-history.jsonl":
                run["history"][chunk["offset"] : chunk["offset"] + len(lines)] = lines
            elif file == "wandb-summary.json":
                run["summary"] = lines[-1]
        run["exitcode"] = content.get("exitcode", run["exitcode"])

    def query(self, text: str, values: dict) -> dict:
        if "mutation UpsertBucket" in text:
            fresh = values["name"] not in self.runs
            run = self.run(values["name"])
            run["settings"] |= {key: value for key, value in values.items() if value is not None}
            bucket = {
                "id": "b",
                "name": values["name"],
                "displayName": "",
                "description": "",
                "config": "{}",
                "sweepName": None,
            }
            return {
                "upsertBucket": {
                    "bucket": {**bucket, "historyLineCount": 0, "project": OWNER},
                    "inserted": fresh,
                }
            }
        if "query RunResumeStatus" in text:
            return {"model": {**OWNER, "bucket": self.resumable(values["name"])}}
        if "mutation CreateArtifact " in text:
            self.run(values["input"]["runName"])["artifacts"].append(
                values["input"]["artifactCollectionName"]
            )
            return {
                "createArtifact": {
                    "artifact": {
                        "id": "a",
                        "state": "COMMITTED",
                        "artifactSequence": {"latestArtifact": None},
                    }
                }
            }
        if "mutation CreateRunFiles" in text:
            files = [
                {"name": name, "uploadUrl": f"{self.url}/upload/{values['run']}/{name}"}
                for name in values["files"]
            ]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "viewer" in text:
            return {
                "viewer": {
                    "id": "u",
                    "entity": "me",
                    "username": "me",
                    "flags": "{}",
                    "teams": {"edges": []},
                }
            }
        return {"serverInfo": {"features": [], "cliVersionInfo": {"max_cli_version": "9.9.9"}}}

    def resumable(self, name: str) -> dict | None:
        """What a client that resumes a run is told of it."""
        if name not in self.runs:
            return None
        run = self.runs[name]
        counts = {"logLineCount": 0, "historyLineCount": len(run["history"]), "eventsLineCount": 0}
        tails = {
            "historyTail": json.dumps([json.dumps(line) for line in run["history"][-1:]]),
            "eventsTail": "[]",
        }
        texts = {
            "summaryMetrics": json.dumps(run["summary"]),
            "config": "{}",
            "wandbConfig": '{"t": 1}',
            "notes": "",
            "displayName": name,
        }
        return {"id": "b", "name": name, "tags": [], **counts, **tails, **texts}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for the receipt of its head

    def log_message(self, *_):
        pass

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def do_POST(self):
        body = self._body()
        self.server.requests += 1
        status = self.server.behave(self.path)
        content = json.dumps(
            self.server.answer(self.path, body)
            if status == 200
            else {"errors": [{"message": "no"}]}
        ).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST


@contextlib.contextmanager
def serving(behave=lambda path: 200):
    """A server on a free local port."""
    server = WandbServer(behave)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def silence(_: str) -> int:
    """A server that takes what it is given and never answers."""
    time.sleep(3600)
    return 200
