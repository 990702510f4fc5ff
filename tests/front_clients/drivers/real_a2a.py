"""A client of the package `a2a-sdk` that sends messages to a server, and says what each task was.

python real_a2a.py BASE-URL BINDING
"""

import asyncio
import json
import sys
import traceback
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import MessageToDict, ParseDict

TOOLS = ["run_command", "slow_data_processor"]


def ask(text=None, data=None, context=None, task=None, raw=None):
    message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER)
    if text is not None:
        message.parts.append(Part(text=text))
    if data is not None:
        message.parts.append(ParseDict({"data": data}, Part()))
    if raw is not None:
        message.parts.append(Part(raw=raw, media_type="image/png"))
    message.context_id, message.task_id = context or "", task or ""
    message.metadata.update({"tools": TOOLS})
    return SendMessageRequest(message=message)


def nothing():
    return {"artifacts": {}, "gaps": 0, "tasks": 0, "states": [], "execution": None}


def add(seen, artifact, is_more):
    artifact = MessageToDict(artifact)
    if is_more:
        seen["artifacts"][artifact["artifactId"]]["parts"] += artifact["parts"]
    else:
        seen["artifacts"][artifact["artifactId"]] = artifact


def take(seen, event):
    if event.HasField("task"):
        seen["tasks"] += 1
        seen["execution"], seen["context"] = event.task.id, event.task.context_id
        status = event.task.status
        seen["artifacts"] = {}
        for artifact in event.task.artifacts:
            add(seen, artifact, False)
    elif event.HasField("artifact_update"):
        update = event.artifact_update
        add(seen, update.artifact, update.append)
        return
    else:
        status = event.status_update.status
        seen["gaps"] += "gap" in MessageToDict(event.status_update.metadata)
    state = TaskState.Name(status.state).removeprefix("TASK_STATE_").lower()
    if seen["states"][-1:] != [state]:
        seen["states"].append(state)
    seen["problem"] = "".join(part.text for part in status.message.parts)


async def read(events, seen):
    async for event in events:
        take(seen, event)
    return seen


def texts(artifacts, kind):
    return "".join(
        part.get("text", "")
        for artifact in artifacts
        if artifact["metadata"]["kind"] == kind
        for part in artifact["parts"]
    )


def told(seen):
    artifacts = list(seen.pop("artifacts").values())
    tools = [artifact for artifact in artifacts if artifact["metadata"]["kind"] == "tool"]
    pieces = {one["artifactId"].split("-", 2)[2]: texts([one], "tool") for one in tools}
    return {
        **seen, "text": texts(artifacts, "text"), "reasoning": texts(artifacts, "reasoning"),
        "pieces": pieces, "whole": artifacts,
    }


async def card(client, clients):
    public = clients["card"]
    extended = await client.get_extended_agent_card(clients["extended"])
    return {
        "name": public.name,
        "bindings": [one.protocol_binding for one in public.supported_interfaces],
        "skills": sorted(skill.id for skill in public.skills),
        "same": [one.id for one in extended.skills] == [one.id for one in public.skills],
    }


async def whole(client, clients):
    context = str(uuid.uuid4())
    seen = await read(client.send_message(ask("whole", context=context)), nothing())
    task = await client.get_task(GetTaskRequest(id=seen["execution"]))
    short = await client.get_task(GetTaskRequest(id=seen["execution"], history_length=0))
    kept = [MessageToDict(artifact) for artifact in task.artifacts]
    next_ = await read(clients["waiting"].send_message(ask("again", context=context)), nothing())
    listed = await client.list_tasks(ListTasksRequest(context_id=context, page_size=1))
    rest = await client.list_tasks(
        ListTasksRequest(context_id=context, page_size=1, page_token=listed.next_page_token)
    )
    said = told(seen)
    artifacts = said.pop("whole")
    return {
        **said,
        "kept": texts(kept, "text") + texts(kept, "tool") == texts(artifacts, "text") + texts(artifacts, "tool"),
        "history": [[part.text for part in one.parts] for one in task.history],
        "short": len(short.history), "next": told(next_)["text"],
        "own_context": seen["context"] == context,
        "listed": [len(listed.tasks), listed.total_size, len(rest.tasks), rest.next_page_token],
        "newest": listed.tasks[0].id == next_["execution"],
    }


async def tool(client, clients):
    data = {"tool": "slow_data_processor", "arguments": {"chunks": 3, "delay_ms": 5}}
    return told(await read(client.send_message(ask(data=data)), nothing()))


async def fails(client, clients):
    return told(await read(client.send_message(ask("fails")), nothing()))


async def cancelled(client, clients):
    seen, has_cancelled = nothing(), None
    async for event in client.send_message(ask("endless")):
        take(seen, event)
        if seen["artifacts"] and has_cancelled is None:
            task = await client.cancel_task(CancelTaskRequest(id=seen["execution"]))
            has_cancelled = TaskState.Name(task.status.state)
    return {**told(seen), "answer": has_cancelled}


async def resumed(client, clients):
    seen, first = nothing(), nothing()
    async for event in client.send_message(ask("slow")):
        take(first, event)
        if any(one["metadata"]["kind"] == "tool" and texts([one], "tool") for one in first["artifacts"].values()):
            break
    request = SubscribeToTaskRequest(id=first["execution"])
    return told(await read(client.subscribe(request), seen))


async def refused(client, clients):
    async def name(events):
        try:
            await read(events, nothing())
        except Exception as error:
            return type(error).__name__

    async def of(call):
        try:
            await call
        except Exception as error:
            return type(error).__name__

    done = await read(client.send_message(ask("again")), nothing())
    task, unknown = done["execution"], "0123456789abcdefghjkmnpqrs"
    push = TaskPushNotificationConfig(task_id=task, url="http://127.0.0.1:9/")
    return {
        "subscribe": await name(client.subscribe(SubscribeToTaskRequest(id=task))),
        "cancel": await of(client.cancel_task(CancelTaskRequest(id=task))),
        "unknown": await of(client.get_task(GetTaskRequest(id=unknown))),
        "strange": await of(client.get_task(GetTaskRequest(id="strange"))),
        "continue": await name(client.send_message(ask("again", task=task))),
        "file": await name(client.send_message(ask(raw=b"x"))),
        "tool": await name(client.send_message(ask(data={"tool": "nobody", "arguments": {}}))),
        "push": await of(client.create_task_push_notification_config(push)),
    }


async def main():
    base, binding = sys.argv[1:3]
    async with httpx.AsyncClient(timeout=60) as http:
        found = await A2ACardResolver(http, base).get_agent_card()
        def make(streaming):
            config = ClientConfig(
                streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding]
            )
            return ClientFactory(config).create(found)
        from a2a.types import GetExtendedAgentCardRequest
        clients = {"card": found, "waiting": make(False), "extended": GetExtendedAgentCardRequest()}
        client = make(True)
        for play in (card, whole, tool, fails, cancelled, resumed, refused):
            try:
                said = await play(client, clients)
            except Exception:
                said = {"thrown": traceback.format_exc()}
            print(json.dumps({"scene": play.__name__, **said}), flush=True)


asyncio.run(main())
