"""A client of the package `langgraph-sdk` that runs agents of a server over the ordinary API of
LangGraph, and says what each run was.

python real_graph.py BASE-URL
"""

import asyncio
import json
import os
import sys
import traceback

from langgraph_sdk import get_client

MODES = ["values", "updates", "messages-tuple", "tools", "custom"]
CONFIG = {"configurable": {"tools": ["run_command", "slow_data_processor"]}}


def ask(text):
    return {"input": {"messages": [{"role": "user", "content": text}]}, "config": CONFIG}


def nothing():
    return {
        "text": "", "reasoning": "", "pieces": {}, "results": {}, "gaps": 0, "ends": 0, "last": -1,
        "ordered": True, "problem": None, "execution": None,
    }


def take(seen, part):
    """Takes what an event says."""
    event, data = part.event, part.data
    if part.id is not None:
        seen["ordered"] &= int(part.id) > seen["last"]
        seen["last"] = int(part.id)
    if event == "metadata":
        seen["execution"] = data["run_id"]
    elif event == "messages" and data[0]["type"] == "AIMessageChunk":
        seen["text"] += data[0]["content"]
        seen["reasoning"] += data[0].get("additional_kwargs", {}).get("reasoning_content", "")
    elif event == "messages":
        seen["results"][data[0]["tool_call_id"]] = data[0]["content"]
    elif event == "tools" and data["event"] == "on_tool_event":
        pieces = seen["pieces"]
        pieces[data["toolCallId"]] = pieces.get(data["toolCallId"], "") + data["data"]
    elif event == "custom" and data["type"] == "gap":
        seen["gaps"] += 1
    elif event == "values":
        seen["values"] = data
    elif event == "error":
        seen["problem"] = data["message"]
    elif event == "end":
        seen["ends"] += 1
        endings = {"success": "finished", "error": "failed", "interrupted": "cancelled"}
        seen["ending"] = endings.get(data["status"])


async def read(stream, seen):
    async for part in stream:
        take(seen, part)
    return seen


def told(seen):
    values = seen.pop("values", {"messages": [{"content": None}]})
    return {**seen, "final": values["messages"][-1]["content"]}


async def readme(client):
    """The example of the package's README."""
    # List all assistants
    assistants = await client.assistants.search()

    # We auto-create an assistant for each graph you register in config.
    agent = assistants[0]

    # Start a new thread
    thread = await client.threads.create()

    # Start a streaming run
    input = {"messages": [{"role": "human", "content": "what's the weather in la"}]}
    events = []
    async for chunk in client.runs.stream(thread['thread_id'], agent['assistant_id'], input=input):
        events.append(chunk)
    last = [chunk for chunk in events if chunk.event == "values"][-1]
    return {
        "assistants": [assistant["assistant_id"] for assistant in assistants],
        "events": list(dict.fromkeys(chunk.event for chunk in events)),
        "final": last.data["messages"][-1]["content"],
    }


async def whole(client):
    thread = (await client.threads.create())["thread_id"]
    seen = await read(client.runs.stream(thread, "demo", **ask("whole"), stream_mode=MODES), nothing())
    state = await client.threads.get_state(thread)
    same = state["values"] == seen["values"]
    next_ = await client.runs.wait(thread, "demo", **ask("again"))
    again = await client.runs.wait(thread, "demo", input={"messages": [*next_["messages"], ["user", "again"]]}, config=CONFIG)
    return {
        **told(seen), "same": same, "next": next_["messages"][-1]["content"],
        "grown": [len(next_["messages"]), len(again["messages"])],
        "found": await client.threads.count(),
    }


async def fails(client):
    seen = await read(client.runs.stream(None, "demo", **ask("fails"), stream_mode=MODES), nothing())
    try:
        said = await client.runs.wait(None, "demo", **ask("fails"))
    except Exception as error:
        said = str(error)
    return {**told(seen), "said": str(said)}


async def cancelled(client):
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "demo", **ask("endless"))
    seen, has_cancelled = nothing(), False
    async for part in client.runs.join_stream(thread, run["run_id"], stream_mode=MODES):
        take(seen, part)
        if seen["text"] and not has_cancelled:
            has_cancelled = True
            await client.runs.cancel(thread, run["run_id"])
    return told(seen)


async def resumed(client):
    thread = (await client.threads.create())["thread_id"]
    seen = nothing()
    async for part in client.runs.stream(thread, "demo", **ask("slow"), stream_mode=MODES):
        take(seen, part)
        if part.event == "tools" and part.data["event"] == "on_tool_event":
            break
    run = seen["execution"]
    joined = client.runs.join_stream(thread, run, stream_mode=MODES, last_event_id=str(seen["last"]))
    await read(joined, seen)
    state = await client.runs.join(thread, run)
    return {**told(seen), "joined": state["messages"][-1]["content"]}


async def restarted(client):
    """A scene for somebody who kills the server as soon as it is told to. The package comes back
    by itself."""
    seen, shown = nothing(), ""
    async for part in client.runs.stream("restarted", "demo", **ask("slow"), stream_mode=MODES):
        take(seen, part)
        if part.event == "tools" and part.data["event"] == "on_tool_event":
            if shown == "":
                print(json.dumps({"scene": "reached"}), flush=True)
            shown += part.data["data"]
    return {**told(seen), "shown": shown}


async def main():
    client = get_client(url=f"{sys.argv[1]}/langgraph", timeout=60)
    plays = (readme, whole, fails, cancelled, resumed)
    if os.environ.get("SCENE") == "restarted":
        plays = (restarted,)
    for play in plays:
        try:
            said = await play(client)
        except Exception:
            said = {"thrown": traceback.format_exc()}
        print(json.dumps({"scene": play.__name__, **said}), flush=True)


asyncio.run(main())
