"""The tool server: a toolbox behind MCP over stdio, for clients of both ages of the protocol.

Consent is asked for in the age's own way: a client that shook hands is sent a question while its call waits; a newer
one is answered with the question, and calls again with what the person said.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

import anyio
import mcp_types as types
from anyio import to_thread
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pyrun.home import version
from pyrun.tools.tool import ToolError
from pyrun.tools.toolbox import Pending, Toolbox

CONSENT: dict[str, Any] = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow this once"}},
    "required": ["allow"],
}
KEY = "consent"
MAX_QUESTIONS = 100  # that wait for an answer; the oldest is forgotten then
HOW = "nobody can be asked; whoever starts the tool server can allow it: --allow {}"

Context = ServerRequestContext[Any, Any]
Result = types.CallToolResult | types.InputRequiredResult


def serve(box: Toolbox) -> None:
    """Until the client closes its end."""
    anyio.run(_serve, box)


async def _serve(box: Toolbox) -> None:
    server = ToolServer(box).server
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


class ToolServer:
    def __init__(self, box: Toolbox) -> None:
        self.box = box
        self.asked: dict[str, str] = {}  # state that a client brings back -> the call that it was asked about
        self.server: Server[Any] = Server(
            "llama-run",
            version=version(),
            instructions="Files, commands, HTTP, JSON, memory and other models. Paths start at the root folder.",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )

    async def list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(read_only_hint=not tool.changes),
                )
                for tool in self.box.tools.values()
            ]
        )

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> Result:
        try:
            pending = await to_thread.run_sync(self.box.prepare, params.name, params.arguments or {})
            if pending.needs_consent:
                question = await self._consent(context, params, pending)
                if question is not None:
                    return question
            return _answer(await self._made(pending))
        except ToolError as error:
            return _answer(str(error), is_error=True)
        except OSError as error:
            return _answer(f"the call was not made: {self.box.audit.path} cannot be written: {error}", is_error=True)

    async def _made(self, pending: Pending) -> str:
        try:
            return await to_thread.run_sync(self.box.make, pending, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            pending.call.stopped.set()
            raise

    async def _consent(
        self, context: Context, params: types.CallToolRequestParams, pending: Pending
    ) -> types.InputRequiredResult | None:
        """None if the person said yes. The question, where the client has to bring it to the person first."""
        capabilities = context.session.client_capabilities
        if capabilities is None or capabilities.elicitation is None:
            raise self.box.refuse(pending, HOW.format(pending.tool.name))
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            said = self._brought(params, pending)
            if said is None:
                return self._question(pending)
        else:
            try:
                said = await context.session.elicit_form(self.box.ask(pending), CONSENT, context.request_id)
            except MCPError as error:
                raise self.box.refuse(pending, f"the client could not ask the person: {error}") from error
        if said.action != "accept" or (said.content or {}).get("allow") is not True:
            raise self.box.refuse(pending, "the person did not allow it")
        return None

    def _question(self, pending: Pending) -> types.InputRequiredResult:
        state = secrets.token_hex(16)
        while len(self.asked) >= MAX_QUESTIONS:
            del self.asked[next(iter(self.asked))]
        self.asked[state] = _digest(pending)
        form = types.ElicitRequestFormParams(message=self.box.ask(pending), requested_schema=CONSENT)
        return types.InputRequiredResult(input_requests={KEY: types.ElicitRequest(params=form)}, request_state=state)

    def _brought(self, params: types.CallToolRequestParams, pending: Pending) -> types.ElicitResult | None:
        """What the person said about just this call, and no other."""
        asked = self.asked.pop(params.request_state or "", None)
        said = (params.input_responses or {}).get(KEY)
        if asked != _digest(pending) or not isinstance(said, types.ElicitResult):
            return None
        return said


def _digest(pending: Pending) -> str:
    call = json.dumps([pending.tool.name, pending.call.arguments], sort_keys=True, default=str)
    return hashlib.blake2b(call.encode("utf-8", "replace")).hexdigest()


def _answer(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
