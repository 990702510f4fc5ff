"""A server of the Python SDK, to stand behind ours: python python_server.py stdio|PORT"""

import base64
import os
import sys

from mcp.server.mcpserver import Context, Image, MCPServer

server = MCPServer("python-server", log_level="ERROR")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


@server.tool()
def greet(name: str) -> str:
    """Greets whoever calls."""
    return f"Hello, {name}!"


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Adds two numbers."""
    return {"sum": a + b}


@server.tool(structured_output=False)
def picture() -> list:
    """A picture between two texts."""
    return ["before", Image(data=PIXEL, format="png"), "behind"]


@server.tool()
async def count(up_to: int, ctx: Context) -> str:
    """Counts, and tells of it."""
    for number in range(1, up_to + 1):
        await ctx.report_progress(number, up_to, f"number {number}")
    return f"counted to {up_to}"


@server.tool()
def fail(reason: str) -> str:
    """Fails."""
    raise ValueError(reason)


@server.tool()
def die() -> str:
    """Takes the whole server along."""
    os._exit(9)


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
