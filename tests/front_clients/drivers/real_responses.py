"""A client of the package `openai` that runs agents of a server, and says what each response was.

python real_responses.py BASE-URL
"""

import json
import sys
import threading
import traceback

import openai

TOOLS = [
    {
        "type": "mcp",
        "server_label": "streamdoor",
        "allowed_tools": ["run_command", "slow_data_processor"],
    }
]
INCLUDE = ["streamdoor:events"]
ENDS = ["response.completed", "response.incomplete", "response.failed"]


def fold(events, seen):
    """Takes what events say."""
    for event in events:
        event = event.to_dict()
        kind = event["type"]
        seen["ordered"] &= event["sequence_number"] > seen["last"]
        seen["last"] = event["sequence_number"]
        if kind == "response.created" and "id" not in seen:
            seen["id"] = event["response"]["id"]
        elif kind == "response.output_text.delta":
            seen["text"] += event["delta"]
        elif kind == "response.reasoning_text.delta":
            seen["reasoning"] += event["delta"]
        elif kind == "streamdoor:tool_output.delta":
            call = event["item_id"].split("_", 2)[2]
            seen["pieces"][call] = seen["pieces"].get(call, "") + event["delta"]
        elif kind == "streamdoor:gap":
            seen["gaps"] += 1
        elif kind in ENDS:
            seen["status"] = event["response"]["status"]
            seen["output"] = event["response"]["output"]
        yield kind


def nothing():
    return {
        "text": "", "reasoning": "", "pieces": {}, "gaps": 0, "last": -1, "ordered": True,
        "status": None,
    }


def whole(client):
    seen = nothing()
    stream = client.responses.create(model="demo", input="whole", tools=TOOLS, include=INCLUDE, stream=True)
    for _ in fold(stream, seen):
        pass
    kept = client.responses.retrieve(seen["id"])
    items = [item for item in kept.output if item.type == "mcp_call"]
    results = {item.id.split("_", 2)[2]: item.output for item in items}
    asked = [{"role": "user", "content": "whole"}]
    again = asked + [item.to_dict() for item in kept.output]
    again += [{"role": "user", "content": "again"}]
    said = client.responses.create(model="demo", input=again)
    return {**seen, "results": results, "next": said.output_text, "total": kept.output_text}


def helper(client):
    with client.responses.stream(model="demo", input="whole", tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    return {"id": final.id, "status": final.status, "text": final.output_text}


def resumed(client):
    seen, pieces = nothing(), 0
    asked = {"model": "demo", "input": "slow", "tools": TOOLS, "include": INCLUDE, "background": True}
    with client.responses.create(**asked, stream=True) as stream:
        for kind in fold(stream, seen):
            pieces += kind == "streamdoor:tool_output.delta"
            if pieces == 2:
                break
    after = {"starting_after": seen["last"], "include": INCLUDE}
    rest = client.responses.retrieve(seen["id"], stream=True, **after)
    for _ in fold(rest, seen):
        pass
    return seen


def cancelled(client):
    begun = client.responses.create(model="demo", input="endless", background=True)
    said = client.responses.cancel(begun.id)
    return {"id": begun.id, "began": begun.status, "status": said.status}


def main():
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
    lock = threading.Lock()

    def play(scene):
        try:
            said = scene(client)
        except Exception:  # noqa: BLE001 - everything is told.
            said = {"thrown": traceback.format_exc()}
        if "id" in said:
            said["execution"] = said["id"].removeprefix("resp_")
        with lock:
            print(json.dumps({"scene": scene.__name__, **said}), flush=True)

    threads = [threading.Thread(target=play, args=(s,)) for s in (whole, helper, resumed, cancelled)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
