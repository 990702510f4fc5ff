"""A client of the Python SDKs that does what it is told, line by line: see ../driver.rs.

python python_mcp.py mcp|fastmcp MODE URL
python python_mcp.py mcp|fastmcp MODE -- PROGRAM [ARGUMENT...]
"""

import json
import sys

import anyio
import anyio.to_thread

PACKAGE, MODE, URL, *COMMAND = sys.argv[1:]


def say(**document):
    print(json.dumps(document), flush=True)


def make_client():
    if PACKAGE == "fastmcp":
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport

        transport = URL if URL != "--" else StdioTransport(COMMAND[0], COMMAND[1:], keep_alive=False)
        return Client(transport, mode=MODE)
    from mcp import StdioServerParameters
    from mcp.client.client import Client

    server = URL if URL != "--" else StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])
    return Client(server, mode=MODE)


def version_of(client):
    if PACKAGE == "fastmcp":
        return client.session.protocol_version
    return client.protocol_version


async def list_tools(client):
    if PACKAGE == "fastmcp":
        return [tool.name for tool in await client.list_tools()]
    names, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return names


async def call_tool(client, order, scopes):
    number = order["id"]

    async def heard(progress, total, message):
        say(call=number, progress=progress, total=total, message=message)

    listener = None if order.get("deaf") else heard
    with anyio.CancelScope() as scope:
        scopes[number] = scope
        try:
            if PACKAGE == "fastmcp":
                result = await client.call_tool(
                    order["tool"], order["given"], progress_handler=listener, raise_on_error=False
                )
            else:
                result = await client.call_tool(
                    order["tool"], order["given"], progress_callback=listener
                )
            text = "".join(getattr(block, "text", "") for block in result.content)
            failed = bool(getattr(result, "is_error", False))
            say(call=number, text=text, failed=failed, meta=dict(result.meta or {}))
        except Exception as error:
            say(call=number, error=f"{type(error).__name__}: {error}")
    if scope.cancelled_caught:
        say(call=number, error="cancelled")
    del scopes[number]


async def main():
    client, scopes = None, {}
    async with anyio.create_task_group() as tasks:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            order = json.loads(line)
            what = order["do"]
            try:
                if what == "connect":
                    client = make_client()
                    await client.__aenter__()
                    say(done=what, version=str(version_of(client)))
                elif what == "list":
                    say(done=what, tools=await list_tools(client))
                elif what == "call":
                    tasks.start_soon(call_tool, client, order, scopes)
                elif what == "cancel":
                    scopes[order["id"]].cancel()
                elif what == "close":
                    await client.__aexit__(None, None, None)
                    say(done=what)
            except Exception as error:
                say(done=what, error=f"{type(error).__name__}: {error}")


anyio.run(main)
