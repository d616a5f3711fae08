"""Is a model hub on this machine: it answers the few requests by which llama-server finds and fetches a model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REVISION = "0" * 39 + "1"


class _Handler(SimpleHTTPRequestHandler):
    """/api/models/OWNER/NAME/refs and .../tree/REVISION list, /OWNER/NAME/resolve/REVISION/FILE fetches."""

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] != ["api", "models"] or len(parts) < 5:
            super().do_GET()
            return
        repository = Path(self.directory).joinpath(*parts[2:4])
        if not repository.is_dir():
            self.send_error(404)
        elif parts[4] == "refs":
            self._answer({"branches": [{"name": "main", "targetCommit": REVISION}]})
        else:
            files = sorted(path for path in repository.rglob("*") if path.is_file())
            self._answer(
                [
                    {
                        "type": "file",
                        "path": path.relative_to(repository).as_posix(),
                        "size": path.stat().st_size,
                        "oid": hashlib.sha256(path.read_bytes()).hexdigest(),
                    }
                    for path in files
                ]
            )

    def translate_path(self, path: str) -> str:
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        if len(parts) > 4 and parts[2] == "resolve" and ".." not in parts:
            return str(Path(self.directory).joinpath(*parts[:2], *parts[4:]))
        return str(Path(self.directory) / "no-such-file")

    def _answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Starts a hub that serves `folder` (OWNER/NAME/FILE), and gives its address."""

    def handler(*arguments: object) -> _Handler:
        return _Handler(*arguments, directory=str(folder))  # type: ignore[arg-type]

    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
