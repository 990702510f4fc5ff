"""A client of LangGraph that runs agents of a server, and says what each run was.

python real_langgraph.py BASE-URL
"""

import json
import os
import sys
import threading
import time
import traceback

import httpx
from langgraph_sdk import get_sync_client
from langgraph_sdk.stream.transport import SyncProtocolSseTransport

OPTIONS = {"tools": ["run_command", "slow_data_processor"]}
CHANNELS = ["messages", "tools", "lifecycle", "custom"]


def ask(text, **more):
    return {
        "input": {"messages": [{"role": "user", "content": text}]},
        "config": {"configurable": {**OPTIONS, **more}},
    }


def fold(events):
    """What raw events say."""
    told = {"text": "", "reasoning": "", "pieces": {}, "results": {}, "gaps": 0, "ending": None}
    told["problem"], told["execution"] = None, None
    for event in events:
        data, method = event["params"]["data"], event["method"]
        told["execution"] = event["event_id"].partition(":")[0]
        if method == "messages" and data["event"] == "content-block-delta":
            delta = data["delta"]
            told["text"] += delta.get("text", "")
            told["reasoning"] += delta.get("reasoning", "")
        elif method == "tools" and data["event"] == "tool-output-delta":
            pieces = told["pieces"]
            pieces[data["tool_call_id"]] = pieces.get(data["tool_call_id"], "") + data["delta"]
        elif method == "tools" and data["event"] in ("tool-finished", "tool-error"):
            told["results"][data["tool_call_id"]] = data.get("output")
        elif method == "custom" and data["name"] == "gap":
            told["gaps"] += 1
        elif method == "lifecycle" and data["event"] in ("completed", "failed"):
            told["ending"] = {"completed": "finished"}.get(data["event"], data["event"])
            told["problem"] = data.get("error")
    return told


def until_over(events, keep):
    for event in events:
        keep.append(event)
        data = event["params"]["data"]
        if event["method"] == "lifecycle" and data["event"] in ("completed", "failed"):
            return


def begin(thread, reads):
    """Has each be read by a thread of its own, from the first event of the run that comes next: a
    subscription is told what comes while it is there, and it is there once it is listed."""
    threads = [threading.Thread(target=read) for read in reads]
    for reader in threads:
        reader.start()
    while len(thread._controller._subscriptions) < len(threads):
        time.sleep(0.01)
    return threads


def whole(client):
    """Through all that the client has: messages, calls, output, and one run after the other."""
    with client.threads.stream(assistant_id="agent") as thread:
        events, texts = [], []
        readers = begin(
            thread,
            [
                lambda: events.extend(thread.subscribe(CHANNELS)),
                lambda: texts.extend(str(message.text) for message in thread.messages),
            ],
        )
        thread.run.start(**ask("whole"))
        for reader in readers:
            reader.join()
        told = fold(events)
        told["texts"] = texts
        told["output"] = thread.output["messages"][-1]["content"]
        # The connection stays: who reads the next run is there before it begins.
        again = []
        [reader] = begin(thread, [lambda: again.extend(thread.subscribe(CHANNELS))])
        thread.run.start(**ask("again"))
        reader.join()
        told["next"] = fold(again)["text"]
        state = client.threads.get_state(thread.thread_id)
        told["over"] = state["next"]
    return told


def calls(client):
    with client.threads.stream(assistant_id="agent") as thread:
        thread.run.start(**ask("whole"))
        told = {"pieces": {}, "results": {}}
        for call in thread.tool_calls:
            told["pieces"][call.tool_call_id] = "".join(call.deltas)
            told["results"][call.tool_call_id] = call.output
    return told


def first_thread(client):
    """A thread that is there before its first run."""
    made = client.threads.create()
    with client.threads.stream(made["thread_id"], assistant_id="demo") as thread:
        time.sleep(0.2)  # Its watcher waits for a run.
        thread.run.start(**ask("again"))
        text = "".join(str(message.text) for message in thread.messages)
        return {"text": text, "output": thread.output["messages"][-1]["content"]}


def fails(client):
    with client.threads.stream(assistant_id="agent") as thread:
        thread.run.start(**ask("fails"))
        told = fold(thread.subscribe(CHANNELS))
        try:
            told["output"] = thread.output
        except RuntimeError as error:
            told["raised"] = str(error)
    return told


def cancelled(client):
    with client.threads.stream(assistant_id="agent") as thread:
        run = thread.run.start(**ask("endless"))
        events = []
        for event in thread.subscribe(CHANNELS):
            events.append(event)
            if event["method"] == "messages" and len(events) < 8:
                client.runs.cancel(thread.thread_id, run["run_id"])
    told = fold(events)
    told["run"] = run["run_id"]
    try:
        with client.threads.stream(assistant_id="nobody") as thread:
            thread.run.start(**ask("whole"))
    except RuntimeError as error:
        told["refused"] = str(error)
    return told


def resumed(client):
    transport = SyncProtocolSseTransport(client=client.http.client, thread_id="lg-resumed")
    params = {"assistant_id": "agent", **ask("slow")}
    transport.send_command({"id": 1, "method": "run.start", "params": params})
    events = []
    handle = transport.open_event_stream({"channels": CHANNELS})
    for event in handle.events:
        events.append(event)
        if event["method"] == "tools" and event["params"]["data"]["event"] == "tool-output-delta":
            break
    handle.close()
    handle = transport.open_event_stream({"channels": CHANNELS, "since": events[-1]["seq"]})
    until_over(handle.events, events)
    handle.close()
    told = fold(events)
    seqs = [event["seq"] for event in events]
    told["ordered"] = seqs == sorted(set(seqs))
    whole_again = []
    handle = transport.open_event_stream({"channels": CHANNELS})
    until_over(handle.events, whole_again)
    handle.close()
    told["same"] = [event["event_id"] for event in events] == [
        event["event_id"] for event in whole_again
    ]
    return told


def gap(client):
    transport = SyncProtocolSseTransport(client=client.http.client, thread_id="lg-gap")
    params = {"assistant_id": "agent", **ask("flood", hold="newest")}
    transport.send_command({"id": 1, "method": "run.start", "params": params})
    while client.threads.get_state("lg-gap")["next"]:
        time.sleep(0.05)
    events = []
    handle = transport.open_event_stream({"channels": CHANNELS})
    until_over(handle.events, events)
    handle.close()
    return fold(events)


def restarted(client):
    """A scene for somebody who kills the server as soon as it is told to."""
    transport = SyncProtocolSseTransport(client=client.http.client, thread_id="lg-restarted")
    params = {"assistant_id": "agent", **ask("slow")}
    transport.send_command({"id": 1, "method": "run.start", "params": params})
    events, shown, breaks = [], "", 0
    while fold(events)["ending"] is None:
        assert breaks < 1000, "nobody starts the server again"
        since = {"since": events[-1]["seq"]} if events else {}
        try:
            handle = transport.open_event_stream({"channels": CHANNELS, **since})
            for event in handle.events:
                events.append(event)
                data = event["params"]["data"]
                if event["method"] == "tools" and data["event"] == "tool-output-delta" and not breaks:
                    if shown == "":
                        print(json.dumps({"scene": "reached"}), flush=True)
                    shown += data["delta"]
                if fold(events)["ending"] is not None:
                    break
        except httpx.TransportError:
            breaks += 1
            time.sleep(0.02)
    told = fold(events)
    seqs = [event["seq"] for event in events]
    told["ordered"] = seqs == sorted(set(seqs))
    told["shown"], told["breaks"] = shown, breaks
    told["ends"] = sum(fold([event])["ending"] is not None for event in events)
    return told


def main():
    client = get_sync_client(url=f"{sys.argv[1]}/langgraph", timeout=60)
    plays = (whole, calls, first_thread, fails, cancelled, resumed, gap)
    if os.environ.get("SCENE") == "restarted":
        plays = (restarted,)
    for play in plays:
        try:
            said = play(client)
        except Exception:
            said = {"thrown": traceback.format_exc()}
        print(json.dumps({"scene": play.__name__, **said}), flush=True)


main()
