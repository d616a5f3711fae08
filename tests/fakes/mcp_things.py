"""An MCP server with tools, a prompt and a resource, some of which misbehave: `python mcp_things.py [mute|NAME]`."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult

lies = 0


def lie() -> CallToolResult:
    """Promises a text, and tells how often it did so by now."""
    global lies
    lies += 1
    return CallToolResult(content=[], structured_content={"lies": lies})


lying = Tool.from_function(lie)
lying.fn_metadata.output_schema = {"type": "object", "properties": {"lies": {"type": "string"}}}
server = MCPServer("things", tools=[lying])


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(1)


@server.tool()
def hang() -> str:
    """Never answers."""
    time.sleep(600)
    return ""


@server.tool()
def flood() -> str:
    """Answers with too much."""
    return "x" * 5_000_000


@server.prompt()
def greet(name: str) -> str:
    """Greets somebody."""
    return f"Say hello to {name}."


@server.resource("note://one")
def note() -> str:
    """A note."""
    return "the note"


if sys.argv[1:] == ["mute"]:
    time.sleep(600)
else:
    print("a word for the log", file=sys.stderr)
    server.run()
