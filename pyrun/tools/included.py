"""list_resources and read_resource: what other MCP servers have to read. A server is started for each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from pyrun.tools.setup import IncludedServer
from pyrun.tools.tool import Call, Tool, ToolError, text

if TYPE_CHECKING:
    from mcp import Client

SECONDS = 30.0
MAX_RESOURCES = 500

T = TypeVar("T")


class ResourceTools:
    def __init__(self, servers: Mapping[str, IncludedServer]) -> None:
        self.servers = servers

    def tools(self) -> list[Tool]:
        if not self.servers:
            return []
        server = {"type": "string", "enum": sorted(self.servers), "description": "Which server."}
        return [
            Tool(
                "list_resources",
                "List what another MCP server has to read.",
                {"server": server},
                self.list_resources,
                ("server",),
            ),
            Tool(
                "read_resource",
                "Read a resource of another MCP server.",
                {"server": server, "uri": text("The resource's address, as it is listed.", maxLength=4000)},
                self.read_resource,
                ("server", "uri"),
            ),
        ]

    def list_resources(self, call: Call) -> str:
        async def listed(client: Client) -> str:
            rows: list[str] = []
            cursor = None
            while len(rows) < MAX_RESOURCES:
                page = await client.list_resources(cursor=cursor)
                rows += [f"{r.uri}\t{r.name}\t{r.description or ''}".rstrip() for r in page.resources]
                cursor = page.next_cursor
                if not cursor:
                    break
            return "\n".join(rows[:MAX_RESOURCES]) or "it has no resources"

        return self._ask(call.text("server"), listed)

    def read_resource(self, call: Call) -> str:
        async def read(client: Client) -> str:
            from mcp_types import TextResourceContents

            result = await client.read_resource(call.text("uri"))
            parts = [
                part.text if isinstance(part, TextResourceContents) else f"[{part.mime_type or 'binary'}, no text]"
                for part in result.contents
            ]
            return "\n".join(parts)

        return self._ask(call.text("server"), read)

    def _ask(self, name: str, question: Callable[[Client], Awaitable[T]]) -> T:
        # Loading this takes longer than all other tools together.
        import anyio
        from mcp import Client, MCPError, StdioServerParameters

        server = self.servers[name]
        parameters = StdioServerParameters(
            command=server.command, args=list(server.arguments), env=dict(server.environment)
        )

        async def run() -> T:
            with anyio.fail_after(SECONDS):
                async with Client(parameters) as client:
                    return await question(client)

        try:
            return anyio.run(run)
        except TimeoutError as error:
            raise ToolError(f"{name} did not answer within {SECONDS:.0f} seconds") from error
        except (MCPError, OSError) as error:
            raise ToolError(f"{name} could not be asked: {error}") from error
        except Exception as error:  # what breaks a connection comes in groups of several kinds
            raise ToolError(f"{name} could not be asked: {_first(error)}") from error


def _first(error: BaseException) -> BaseException:
    inner = getattr(error, "exceptions", None)
    return _first(inner[0]) if inner else error
