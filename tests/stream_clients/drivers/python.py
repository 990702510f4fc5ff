"""The Python client of Durable Streams: writes and reads streams, also across restarts.

python python.py BASE-URL SCENE
"""

import json
import sys
import threading
import time

import httpx
from durable_streams import (
    DurableStream,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
    stream,
)

BASE = sys.argv[1]
MESSAGES = 400
JSON = "application/json"


def url(name):
    return f"{BASE}/v1/stream/python/{name}"


def say(said):
    print(json.dumps(said), flush=True)


def read(name, **more):
    with stream(url(name), live=False, **more) as response:
        return response.read_json()


def follow(name, live, count):
    """Follows a stream until there are `count` messages. This client does not connect again by
    itself: the last offset says where to go on."""
    items, offset, breaks = [], "-1", 0
    while len(items) < count:
        try:
            with stream(url(name), offset=offset, live=live, timeout=30) as response:
                for event in response.iter_events(mode="json"):
                    items.extend(event.data)
                    offset = event.next_offset
                    if len(items) >= count:
                        break
        except httpx.TransportError:
            breaks += 1
            time.sleep(0.02)
    return {"items": items, "breaks": breaks}


class Follower(threading.Thread):
    """A reader on a thread of its own."""

    def __init__(self, *arguments):
        super().__init__()
        self.arguments = arguments
        self.start()

    def run(self):
        self.result = follow(*self.arguments)

    def get(self):
        self.join()
        return self.result


def whole():
    """Everything that the client has, on a server that stays."""
    with DurableStream.create(url("words"), content_type="text/plain", body="one ") as words:
        words.append("two ")
        offset = words.append("three").next_offset
        assert words.head().offset == offset
        assert words.head().content_type == "text/plain"
        with words.stream(live=False) as response:
            assert response.read_text() == "one two three"
            assert (response.offset, response.up_to_date) == (offset, True)
        words.append("!")
        with words.stream(offset=offset, live=False) as response:
            assert response.read_bytes() == b"!"
        try:
            DurableStream.create(url("words"), content_type=JSON)
            raise AssertionError("the stream has another type")
        except StreamExistsError:
            pass
        words.delete()
        try:
            words.head()
            raise AssertionError("the stream is deleted")
        except StreamNotFoundError:
            pass

    values = [{"n": 1}, [1, [2]], "text, with: {commas}", 1.5, True, None]
    with DurableStream.create(url("values"), content_type=JSON) as typed:
        readers = [Follower("values", live, len(values)) for live in ("long-poll", "sse")]
        for value in values:
            typed.append(value)
        assert read("values") == values
        for reader in readers:
            assert reader.get() == {"items": values, "breaks": 0}

    with DurableStream.create(url("ordered"), content_type=JSON) as ordered:
        ordered.append(1, seq="001")
        try:
            ordered.append(1, seq="001")
            raise AssertionError("the number was used before")
        except SeqConflictError:
            pass
        ordered.append(2, seq="002")
        assert read("ordered") == [1, 2]
    say({"done": True})


def across():
    """A writer and its readers, while somebody kills the server again and again."""
    with DurableStream.create(url("exact-across"), content_type=JSON) as exact:
        readers = {live: Follower("exact-across", live, MESSAGES) for live in ("long-poll", "sse")}
        for n in range(MESSAGES):
            append(exact, n)
            if n % 20 == 19:
                say({"reached": n})
    told = {live: reader.get() for live, reader in readers.items()}
    lists = {live: reader["items"] for live, reader in told.items()}
    lists["again"] = read("exact-across")
    breaks = [reader["breaks"] for reader in told.values()]
    say({"done": True, "messages": MESSAGES, "exact": lists, "breaks": breaks, "errors": []})


def append(handle, n):
    """Appends a message until it is there. With its number it is stored once: if the reply to the
    first attempt was lost, the second one is a conflict."""
    is_again = False
    while True:
        try:
            handle.append(n, seq=f"{n:06}")
            return
        except SeqConflictError:
            assert is_again, f"{n} was stored before it was sent"
            return
        except httpx.TransportError:
            is_again = True
            time.sleep(0.02)


{"whole": whole, "across": across}[sys.argv[2]]()
