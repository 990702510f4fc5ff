"""A client of LangGraph: follows each address, and says what it has understood.

python langgraph.py BASE-URL PATH...
"""

import json
import sys

import httpx
from langchain_core.language_models.chat_model_stream import ChatModelStream
from langgraph_sdk.stream.decoders import ExtensionsDecoder, MessagesDecoder, ToolCallsDecoder
from langgraph_sdk.stream.subscription import infer_channel
from langgraph_sdk.stream.transport import SyncProtocolSseTransport

CHANNELS = ["messages", "tools", "lifecycle", "custom"]


class Handle:
    """A call of a tool, as it is told."""

    def __init__(self, *, tool_call_id, name, input, namespace):
        self.told = {"id": tool_call_id, "name": name, "input": input, "pieces": ""}

    def _push_delta(self, delta):
        self.told["pieces"] += delta

    def _finish(self, output):
        self.told["output"] = output

    def _fail(self, error):
        self.told["error"] = str(error)


def read(client, path):
    transport = SyncProtocolSseTransport(client=client, thread_id="thread-1", stream_path=path)
    messages = MessagesDecoder([], ChatModelStream)
    calls = ToolCallsDecoder([], Handle)
    gaps = ExtensionsDecoder("gap")
    streams, handles, gap_count, lifecycle, seqs, unknown = [], [], 0, [], [], 0
    handle = transport.open_event_stream({"channels": CHANNELS})
    for event in handle.events:
        seqs.append(event["seq"])
        unknown += infer_channel(event) is None
        streams.extend(messages.feed(event))
        handles.extend(calls.feed(event))
        gap_count += len(list(gaps.feed(event)))
        if event["method"] == "lifecycle":
            lifecycle.append(event["params"]["data"])
    transport.close()
    told = []
    for stream in streams:
        message = {"done": stream.done}
        try:
            output = stream.output
            message["id"] = output.id
            message["content"] = output.content
            message["calls"] = [
                {key: call[key] for key in ("id", "name", "args")} for call in output.tool_calls
            ]
            message["usage"] = output.usage_metadata
        except Exception as error:
            message["error"] = str(error)
        told.append(message)
    return {
        "messages": told,
        "tools": [handle.told for handle in handles],
        "gaps": gap_count,
        "lifecycle": lifecycle,
        "ordered": seqs == sorted(set(seqs)),
        "unknown": unknown,
    }


def ask(client, path):
    """Starts a run, as `thread.run.start` does."""
    transport = SyncProtocolSseTransport(client=client, thread_id="thread-1", commands_path=path)
    params = {
        "assistant_id": "agent",
        "input": {"messages": [{"role": "user", "content": "find it"}]},
    }
    try:
        transport.send_command({"id": 1, "method": "run.start", "params": params})
    except ValueError:
        pass  # What is answered here is a stream.


def main():
    base_url, *paths = sys.argv[1:]
    with httpx.Client(base_url=base_url, trust_env=False) as client:
        for path in paths:
            print(json.dumps(read(client, path)), flush=True)
        ask(client, paths[0])


main()
