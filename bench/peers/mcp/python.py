"""A server of the Python SDK (version 2) for one run of `bench mcp --only python`.

python python.py --transport http|stdio --plan FILE --executions N ...

As people write it: an MCPServer whose tool awaits `report_progress`; over HTTP its Starlette
application under uvicorn. Both eras are the same program. See `bench/mcp/peer.rs` for what it is
told. The last two milliseconds before something is due it polls by `sleep(0)`, so that it still
reads what comes.
"""

import array
import asyncio
import logging
import os
import socket
import sys
import threading
import time

from mcp.server.mcpserver import Context, MCPServer

OPTIONS = {word[2:]: value for word, value in zip(sys.argv[1::2], sys.argv[2::2])}
EXECUTIONS = int(OPTIONS["executions"])
STAMP_DIGITS = 20
LEAD_NS = 20_000_000
POLLS_NS = 2_000_000
LINGER_S = 0.002
TEXT = ("the quick brown fox jumps over the lazy dog, " * 1500)[STAMP_DIGITS : int(OPTIONS["size"])]
PLAN = array.array("Q")
with open(OPTIONS["plan"], "rb") as file:
    PLAN.frombytes(file.read())

logging.disable(logging.WARNING)
server = MCPServer("peer")
started = 0
origin = None  # A future, once there is a loop.


async def until(due_ns):
    while (left_ns := due_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(max(left_ns - POLLS_NS, 0) / 1e9)


async def notify(context, number, due_ns):
    await context.report_progress(float(number), None, f"{due_ns:0{STAMP_DIGITS}}{TEXT}")


@server.tool()
async def first(context: Context) -> None:
    """One chunk."""
    await notify(context, 1, time.monotonic_ns())
    await asyncio.sleep(LINGER_S)


@server.tool()
async def paced(index: int, context: Context) -> None:
    """All chunks of one execution."""
    global started, origin
    started += 1
    if origin is None:
        origin = asyncio.get_running_loop().create_future()
    if started == EXECUTIONS:
        origin.set_result(time.monotonic_ns() + LEAD_NS)
    begun_ns = await asyncio.shield(origin)
    if len(PLAN) == 0:
        end_ns = begun_ns + int((float(OPTIONS["duration"]) + float(OPTIONS["warmup"])) * 1e9)
        await until(begun_ns)
        number = 0
        while time.monotonic_ns() < end_ns:
            number += 1
            await notify(context, number, time.monotonic_ns())
    for number, due_ns in enumerate(PLAN[index::EXECUTIONS], 1):
        await until(begun_ns + due_ns)
        await notify(context, number, begun_ns + due_ns)
    await asyncio.sleep(LINGER_S)


def leave_with_standard_input():
    sys.stdin.buffer.read()
    os._exit(0)


def serve_http():
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"listening 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    threading.Thread(target=leave_with_standard_input, daemon=True).start()
    application = server.streamable_http_app()
    # Connections may wait for others before they call.
    waits = {"timeout_keep_alive": 600}
    config = uvicorn.Config(application, log_level="error", access_log=False, **waits)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if OPTIONS["transport"] == "stdio":
    server.run("stdio")
else:
    serve_http()
