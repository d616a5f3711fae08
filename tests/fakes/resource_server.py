"""An MCP server of the old age with two resources, by hand: what the tool server includes in the tests."""

from __future__ import annotations

import json
import sys
from typing import Any

TEXT = {"uri": "note://one", "text": "the note"}
IMAGE = {"uri": "note://image", "mimeType": "image/png", "blob": "AAAA"}
LISTED = [{"name": "note", "uri": "note://one"}, {"name": "image", "uri": "note://image"}]
NAME = {"name": "notes", "version": "1"}
SERVER = {"protocolVersion": "2024-11-05", "capabilities": {"resources": {}}, "serverInfo": NAME}
UNKNOWN = {"code": -32601, "message": "there is no such thing"}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return SERVER
    if method == "resources/list":
        return {"resources": LISTED}
    if method == "resources/read":
        return next(({"contents": [found]} for found in (TEXT, IMAGE) if found["uri"] == params["uri"]), None)
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        told = {"result": result} if result is not None else {"error": UNKNOWN}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
