"""Asks scripted models with the SDKs of OpenAI and Anthropic, and says in JSON what they made of it.

Usage: sdks.py SCENE=BASE_URL[,BASE_URL] ...
"""

import json
import sys
import time

import anthropic
import openai

TASK = {"role": "user", "content": "look around"}


def clients(base_url, retries=0):
    common = {"api_key": "sk-test", "max_retries": retries, "timeout": 60}
    return (
        openai.OpenAI(base_url=base_url, **common),
        anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), **common),
    )


def chat_stream(client, messages):
    text, reasoning, calls, usage, finish, times = "", "", {}, None, None, []
    stream = client.chat.completions.create(
        model="demo", stream=True, stream_options={"include_usage": True}, messages=messages
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                times.append(time.monotonic())
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
    return {
        "text": text,
        "reasoning": reasoning,
        "calls": [calls[index] for index in sorted(calls)],
        "usage": [usage.prompt_tokens, usage.completion_tokens],
        "finish": finish,
        "spread_ms": (times[-1] - times[0]) * 1000,
    }


def chat_plain(client, messages):
    answer = client.chat.completions.create(model="demo", messages=messages)
    message = answer.choices[0].message
    return {
        "text": message.content,
        "reasoning": getattr(message, "reasoning_content", "") or "",
        "calls": [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or []
        ],
        "usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
        "finish": answer.choices[0].finish_reason,
    }


def of_response(response):
    return {
        "text": response.output_text,
        "reasoning": "".join(
            part.text for item in response.output if item.type == "reasoning" for part in item.summary
        ),
        "calls": [
            {"id": item.call_id, "name": item.name, "arguments": item.arguments}
            for item in response.output
            if item.type == "function_call"
        ],
        "usage": [response.usage.input_tokens, response.usage.output_tokens],
        "finish": response.status,
    }


def responses_stream(client, items):
    deltas, arguments, times = "", "", []
    with client.responses.stream(model="demo", input=items) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas += event.delta
                times.append(time.monotonic())
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
        result = of_response(stream.get_final_response())
    assert deltas == result["text"], deltas
    assert arguments == "".join(call["arguments"] for call in result["calls"]), arguments
    return result | {"spread_ms": (times[-1] - times[0]) * 1000}


def responses_plain(client, items):
    return of_response(client.responses.create(model="demo", input=items))


def of_message(message):
    blocks = message.content
    return {
        "text": "".join(block.text for block in blocks if block.type == "text"),
        "reasoning": "".join(block.thinking for block in blocks if block.type == "thinking"),
        "calls": [
            {"id": block.id, "name": block.name, "arguments": json.dumps(block.input)}
            for block in blocks
            if block.type == "tool_use"
        ],
        "usage": [message.usage.input_tokens, message.usage.output_tokens],
        "finish": message.stop_reason,
    }


def messages_stream(client, messages):
    times = []
    with client.messages.stream(model="demo", max_tokens=100, messages=messages) as stream:
        for event in stream:
            if event.type == "text":
                times.append(time.monotonic())
        result = of_message(stream.get_final_message())
    return result | {"spread_ms": (times[-1] - times[0]) * 1000}


def messages_plain(client, messages):
    return of_message(client.messages.create(model="demo", max_tokens=100, messages=messages))


def turns(base_urls):
    """One turn, each way to ask for it: the first model is quick, the second one takes its time."""
    quick, slow = base_urls.split(",")
    of_openai, of_anthropic = clients(quick)
    slow_openai, slow_anthropic = clients(slow)
    # For the first time an SDK is busy with itself: it would hear all of a stream at once.
    responses_stream(of_openai, [TASK])
    chat_stream(of_openai, [TASK])
    messages_stream(of_anthropic, [TASK])
    return {
        "chat stream": chat_stream(slow_openai, [TASK]),
        "chat plain": chat_plain(of_openai, [TASK]),
        "responses stream": responses_stream(slow_openai, [TASK]),
        "responses plain": responses_plain(of_openai, [TASK]),
        "messages stream": messages_stream(slow_anthropic, [TASK]),
        "messages plain": messages_plain(of_anthropic, [TASK]),
    }


def models(base_url):
    of_openai, of_anthropic = clients(base_url)
    return {
        "openai": [model.id for model in of_openai.models.list()],
        "anthropic": [model.id for model in of_anthropic.models.list()],
    }


def conversations(base_url):
    """Whole conversations: each SDK sends back what it was given, and what the tools said."""
    of_openai, of_anthropic = clients(base_url)
    texts = {"chat": [], "responses": [], "messages": []}
    messages = [TASK]
    while True:
        message = of_openai.chat.completions.create(model="demo", messages=messages).choices[0].message
        texts["chat"].append(message.content)
        if not message.tool_calls:
            break
        messages.append(message.to_dict())
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "heard " + call.id})
    items = [TASK]
    while True:
        response = of_openai.responses.create(model="demo", input=items)
        texts["responses"].append(response.output_text)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        items += [item.to_dict() for item in response.output]
        for call in calls:
            output = {"call_id": call.call_id, "output": "heard " + call.call_id}
            items.append({"type": "function_call_output"} | output)
    messages = [TASK]
    while True:
        message = of_anthropic.messages.create(model="demo", max_tokens=100, messages=messages)
        blocks = message.content
        texts["messages"].append("".join(block.text for block in blocks if block.type == "text"))
        if message.stop_reason != "tool_use":
            break
        messages.append({"role": "assistant", "content": [block.to_dict() for block in blocks]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "heard " + block.id}
            for block in blocks
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    return texts


def said(ask):
    """What an SDK makes of a failure: its class, and what it knows of it."""
    try:
        return {"answer": ask()}
    except (openai.APIError, anthropic.APIError) as error:
        response = getattr(error, "response", None)
        return {
            "class": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "retry_after": response.headers.get("retry-after") if response is not None else None,
            "text": str(error),
        }
    except Exception as error:  # What the HTTP library says of a broken connection.
        return {"class": type(error).__module__.split(".")[0] + "." + type(error).__name__}


def failures(base_url):
    of_openai, of_anthropic = clients(base_url)
    found = {}
    for task in ["quota", "overload", "key", "sentence", "cut", "frame"]:
        for wire in ["chat", "responses", "messages"]:
            message = [{"role": "user", "content": f"{task} of {wire}"}]

            def ask():
                if wire == "messages":
                    return messages_stream(of_anthropic, message)["text"]
                if wire == "chat":
                    return chat_stream(of_openai, message)["text"]
                text = ""
                stream = of_openai.responses.create(model="demo", input=message, stream=True)
                for event in stream:
                    if event.type == "response.output_text.delta":
                        text += event.delta
                    if event.type == "error":
                        return [text, event.code, event.message]
                return text

            found[f"{task} {wire}"] = said(ask)
    return found


def retries(base_url):
    """The SDKs' own second attempts, which heed Retry-After."""
    of_openai, of_anthropic = clients(base_url, retries=2)
    found = {}
    for wire, ask in {
        "chat": lambda message: chat_plain(of_openai, message)["text"],
        "responses": lambda message: responses_plain(of_openai, message)["text"],
        "messages": lambda message: messages_plain(of_anthropic, message)["text"],
    }.items():
        began = time.monotonic()
        text = ask([{"role": "user", "content": f"a quota, for the second attempt of {wire}"}])
        found[wire] = {"text": text, "seconds": time.monotonic() - began}
    return found


found = {}
for word in sys.argv[1:]:
    scene, base_url = word.split("=", 1)
    found[scene] = globals()[scene](base_url)
print(json.dumps(found))
