"""Read an execution of a streamdoor server, or be the producer of one, through shared memory.

    import streamdoor

    with streamdoor.Door() as door:
        with door.read(execution, policy="block") as reader:
            for chunk in reader.chunks():
                print(chunk.seq, len(chunk.data))

        with door.produce("numbers") as writer:     # completed at the end, failed by an exception
            print(writer.execution)
            for number in range(1000):
                writer.send(f"{number}".encode())   # waits while readers hold it back

Threads may share a reader or a writer. One of them is in it at a time, and the others wait.

Needs nothing but Python 3.8 and the library of tools/c (libstreamdoor_c.so), which is looked for
where STREAMDOOR_LIBRARY says, beside this file, and where the system looks for libraries. See
tools/c/streamdoor.h for what is behind all this.
"""

import ctypes
import ctypes.util
import os
import pathlib
import threading
import time
from collections import namedtuple

__all__ = [
    "Chunk", "Door", "End", "Gap", "Progress", "Reader", "StreamdoorError", "Writer", "ServerGone",
    "Stopped",
]

POLICIES = ("drop", "drop_oldest", "buffer", "block", "conflate", "disconnect", "replay")
KINDS = (
    "output", "stdout", "stderr", "row", "match", "sample", "text", "tool_call", "tool_arguments",
    "json", "log", "custom", "content", "structured",
)
OUTCOMES = {
    1: "completed", 2: "failed", 3: "cancelled", 4: "timed_out",
    16: "detached: lag", 17: "detached: stall", 18: "detached: lost", 19: "detached: shutdown",
    20: "detached: evicted", 21: "detached: removed",
}
_NOTHING, _DELIVERY, _OVER = 0, 1, 2
_VERSION_MAJOR = 1

#: A piece of the result. `data` is bytes of its own.
Chunk = namedtuple("Chunk", "seq kind key more offset expected time_us time_ns data")
#: What will not come: chunks from `from_seq` to `to_seq`.
Gap = namedtuple("Gap", "from_seq to_seq chunk_count byte_count")
#: How far it is; `total` is None if nobody knows.
Progress = namedtuple("Progress", "progress total message")
#: The last word. `outcome` is one of OUTCOMES; `error` says what went wrong, if anything did.
End = namedtuple(
    "End",
    "outcome error chunk_count byte_count missed_chunks missed_bytes resume_from exit_code"
    " exit_signal",
)


class StreamdoorError(Exception):
    """What went wrong; `code` is one of the header's SD_ERROR_…"""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class ServerGone(StreamdoorError):
    """The server has gone, without an end: what was given is all there is."""


class Stopped(StreamdoorError):
    """A writer's execution has ended: it was cancelled, say."""


_ERRORS = {-8: ServerGone, -9: Stopped}


class _Name(ctypes.Structure):
    _fields_ = [("name", ctypes.c_uint64)]


class _ReadOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("policy", ctypes.c_uint32), ("from_", ctypes.c_uint32),
        ("from_seq", ctypes.c_uint64), ("limit_chunks", ctypes.c_uint32),
        ("kinds", ctypes.c_uint32), ("limit_bytes", ctypes.c_uint64),
        ("headers_only", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
    ]


class _ProduceOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("ring_bytes", ctypes.c_uint32),
        ("chunk_bytes", ctypes.c_uint32), ("estimated_bytes", ctypes.c_uint64),
        ("policy", ctypes.c_uint32), ("hold_ms", ctypes.c_uint32),
    ]


class _Delivery(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("type", ctypes.c_uint32), ("kind", ctypes.c_uint32),
        ("key", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("seq", ctypes.c_uint64),
        ("to_seq", ctypes.c_uint64), ("chunk_count", ctypes.c_uint64),
        ("byte_count", ctypes.c_uint64), ("missed_chunks", ctypes.c_uint64),
        ("missed_bytes", ctypes.c_uint64), ("offset", ctypes.c_uint64),
        ("expected", ctypes.c_uint64), ("time_us", ctypes.c_uint64), ("time_ns", ctypes.c_uint64),
        ("progress", ctypes.c_double), ("total", ctypes.c_double), ("outcome", ctypes.c_uint32),
        ("exit_code", ctypes.c_int32), ("exit_signal", ctypes.c_int32),
        ("reserved", ctypes.c_uint32), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t),
    ]


def _load():
    places = [os.environ.get("STREAMDOOR_LIBRARY")]
    places.append(pathlib.Path(__file__).with_name("libstreamdoor_c.so"))
    found = next((str(place) for place in places if place and os.path.exists(place)), None)
    found = found or ctypes.util.find_library("streamdoor_c")
    if not found:
        raise ImportError(
            "libstreamdoor_c.so is not found; build it with"
            " `cargo build --release --manifest-path tools/c/Cargo.toml`"
            " and let STREAMDOOR_LIBRARY say where it is"
        )
    library = ctypes.CDLL(found)
    out, text, pointer = ctypes.POINTER(_Name), ctypes.c_char_p, ctypes.POINTER
    u32, u64, size, seq = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, pointer(ctypes.c_uint64)
    for name, arguments in {
        "sd_open": [text, text, out],
        "sd_close": [_Name],
        "sd_read": [_Name, text, pointer(_ReadOptions), out],
        "sd_run": [_Name, text, text, pointer(_ReadOptions), out],
        "sd_next": [_Name, ctypes.c_int64, pointer(_Delivery)],
        "sd_poll": [_Name, pointer(_Delivery)],
        "sd_fd": [_Name],
        "sd_watch": [_Name],
        "sd_reader_execution": [_Name, text, size],
        "sd_close_reader": [_Name],
        "sd_produce": [_Name, text, pointer(_ProduceOptions), out],
        "sd_writer_execution": [_Name, text, size],
        "sd_chunk_bytes_max": [_Name],
        "sd_send_as": [_Name, u32, u32, ctypes.c_void_p, size, seq],
        "sd_try_send": [_Name, u32, u32, ctypes.c_void_p, size, seq],
        "sd_lend": [_Name, size, pointer(ctypes.c_void_p)],
        "sd_publish": [_Name, u32, u32, size, seq],
        "sd_progress": [_Name, ctypes.c_double, ctypes.c_double, text],
        "sd_expect": [_Name, u64],
        "sd_is_stopped": [_Name],
        "sd_complete": [_Name],
        "sd_fail": [_Name, text],
        "sd_close_writer": [_Name],
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.sd_error_text.argtypes, library.sd_error_text.restype = [], text
    library.sd_version.argtypes, library.sd_version.restype = [], u32
    if library.sd_version() >> 16 != _VERSION_MAJOR:
        raise ImportError(f"{found} is of another version")
    return library


_library = _load()


def _checked(result):
    """What a function gives, if that is no error."""
    if result < 0:
        text = _library.sd_error_text().decode("utf-8", "replace")
        raise _ERRORS.get(result, StreamdoorError)(result, text)
    return result


def _encoded(text):
    encoded = os.fsencode(text)
    if b"\0" in encoded:
        raise ValueError("a text with a zero in it")
    return encoded


def _index(names, name, what):
    if name not in names:
        raise ValueError(f"{what}: one of {', '.join(names)}, not {name!r}")
    return names.index(name)


def _execution(function, name):
    buffer = ctypes.create_string_buffer(64)
    _checked(function(name, buffer, len(buffer)))
    return buffer.value.decode()


class _Closing:
    """Closes once: when it is told, at the end of `with`, or when nobody needs it any more."""

    _name = None

    def close(self):
        name, self._name = self._name, None
        if name is not None:
            _checked(self._close(name))

    def _open(self):
        if self._name is None:
            raise ValueError("it is closed")
        return self._name

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def __del__(self):
        try:
            self.close()
        except Exception:  # Nobody is there to hear it, perhaps not even the library.
            pass


class Door(_Closing):
    """The door of a server: the path of a socket, by default $XDG_RUNTIME_DIR/streamdoor.sock."""

    def __init__(self, path=None, token=None):
        self._close = _library.sd_close
        name = _Name()
        path = None if path is None else _encoded(path)
        token = None if token is None else _encoded(token)
        _checked(_library.sd_open(path, token, ctypes.byref(name)))
        self._name = name

    def read(self, execution, **options):
        """Reads an execution: a Reader.

        policy: one of POLICIES; start: "start", "live", or the number of a chunk;
        limit_chunks, limit_bytes: how far it may lag; kinds: some of KINDS;
        headers_only: chunks come without their bytes.
        """
        wishes, name = _wishes(**options), _Name()
        _checked(_library.sd_read(self._open(), _encoded(execution), wishes, ctypes.byref(name)))
        return Reader(name)

    def run(self, tool, arguments="{}", **options):
        """Starts a tool and reads what it gives. `arguments`: a JSON object, as text."""
        wishes, name = _wishes(**options), _Name()
        tool, arguments = _encoded(tool), _encoded(arguments)
        _checked(_library.sd_run(self._open(), tool, arguments, wishes, ctypes.byref(name)))
        return Reader(name)

    def produce(self, name, *, ring_bytes=0, chunk_bytes=0, estimated_bytes=0, policy=None,
                hold_ms=0):
        """Becomes the producer of a new execution: a Writer."""
        number = 0 if policy is None else 1 + _index(POLICIES, policy, "policy")
        options = _ProduceOptions(
            ctypes.sizeof(_ProduceOptions), ring_bytes, chunk_bytes, estimated_bytes, number,
            hold_ms,
        )
        given = _Name()
        _checked(
            _library.sd_produce(self._open(), _encoded(name), options, ctypes.byref(given))
        )
        return Writer(given)


def _wishes(*, policy=None, start="start", limit_chunks=0, limit_bytes=0, kinds=(),
            headers_only=False):
    options = _ReadOptions(struct_size=ctypes.sizeof(_ReadOptions))
    if policy is not None:
        options.policy = 1 + _index(POLICIES, policy, "policy")
    if isinstance(start, int):
        options.from_, options.from_seq = 2, start
    else:
        options.from_ = _index(("start", "live"), start, "start")
    options.limit_chunks, options.limit_bytes = limit_chunks, limit_bytes
    for kind in kinds:
        options.kinds |= 1 << _index(KINDS, kind, "kinds")
    options.headers_only = bool(headers_only)
    return options


class Reader(_Closing):
    """Reads one execution. To be iterated over: Chunk, Gap, Progress, and last of all End."""

    def __init__(self, name):
        self._close = _library.sd_close_reader
        self._name = name
        self._delivery = _Delivery(struct_size=ctypes.sizeof(_Delivery))
        self._reference = ctypes.byref(self._delivery)
        # Held until what a call has filled in is copied: the next call fills it in again.
        self._lock = threading.Lock()
        self.is_over = False

    @property
    def execution(self):
        """The id of what it reads."""
        return _execution(_library.sd_reader_execution, self._open())

    def __iter__(self):
        return self

    def __next__(self):
        delivery = self.next()
        if delivery is None:
            raise StopIteration
        return delivery

    def chunks(self):
        """Only the chunks. What was missed, or went wrong, is an exception."""
        for delivery in self:
            if isinstance(delivery, Chunk):
                yield delivery
            elif isinstance(delivery, Gap):
                raise StreamdoorError(0, f"missed {delivery.from_seq} to {delivery.to_seq}")
            elif isinstance(delivery, End) and delivery.outcome != "completed":
                raise StreamdoorError(0, f"{delivery.outcome}: {delivery.error}")

    def next(self, timeout=None):
        """What is next. None after the end, and when `timeout` seconds have passed."""
        if timeout is None:
            with self._lock:
                return self._given(_library.sd_next(self._open(), -1, self._reference))
        deadline = time.monotonic() + max(0, timeout)
        if not self._lock.acquire(timeout=min(max(0, timeout), threading.TIMEOUT_MAX)):
            return None
        try:
            limit_ms = max(0, round((deadline - time.monotonic()) * 1000))
            return self._given(_library.sd_next(self._open(), limit_ms, self._reference))
        finally:
            self._lock.release()

    def poll(self):
        """What is there at this moment, or None; `is_over` says whether more can come. None, too,
        while another thread is in this reader: that one is given what comes."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._given(_library.sd_poll(self._open(), self._reference))
        finally:
            self._lock.release()

    def fileno(self):
        """For select and event loops; nothing is to be read from it. Before waiting: watch()."""
        return _checked(_library.sd_fd(self._open()))

    def watch(self):
        """True: "I will now wait until fileno() is readable". False: there is something already;
        poll() until there is nothing, and ask again."""
        return _checked(_library.sd_watch(self._open())) == 1

    def _given(self, result):
        if _checked(result) != _DELIVERY:
            self.is_over = result == _OVER
            return None
        given = self._delivery
        data = ctypes.string_at(given.data, given.size) if given.size else b""
        if given.type == 1:
            return Chunk(
                given.seq, KINDS[given.kind], given.key, bool(given.flags & 1), given.offset,
                given.expected or None, given.time_us, given.time_ns, data,
            )
        if given.type == 2:
            return Gap(given.seq, given.to_seq, given.chunk_count, given.byte_count)
        if given.type == 3:
            return Progress(given.progress, given.total or None, data.decode("utf-8", "replace"))
        return End(
            OUTCOMES[given.outcome], data.decode("utf-8", "replace"), given.chunk_count,
            given.byte_count, given.missed_chunks, given.missed_bytes, given.seq or None,
            None if given.exit_code < 0 else given.exit_code, given.exit_signal or None,
        )


class Writer(_Closing):
    """Publishes one execution. At the end of `with` it is completed, or, if an exception passes,
    failed with its text."""

    def __init__(self, name):
        self._close = _library.sd_close_writer
        self._name = name
        self._seq = ctypes.c_uint64()
        # Held until the number that a call has filled in is read: the next call fills it in again.
        self._lock = threading.Lock()
        self.execution = _execution(_library.sd_writer_execution, name)
        self.chunk_bytes_max = _checked(_library.sd_chunk_bytes_max(name))

    def send(self, data, kind="output", key=0):
        """Sends bytes, or anything like bytes, and waits while readers hold it back. The number of
        the chunk; of the last one, where the ring takes less at once."""
        kind, (address, size, keep) = _index(KINDS, kind, "kind"), _bytes(data)
        with self._lock:
            reference = ctypes.byref(self._seq)
            _checked(_library.sd_send_as(self._open(), kind, key, address, size, reference))
            return self._seq.value

    def try_send(self, data, kind="output", key=0):
        """As send, at once or not at all: then None. None, too, while another thread sends."""
        kind, (address, size, keep) = _index(KINDS, kind, "kind"), _bytes(data)
        if not self._lock.acquire(blocking=False):
            return None
        try:
            reference = ctypes.byref(self._seq)
            sent = _library.sd_try_send(self._open(), kind, key, address, size, reference)
            return self._seq.value if _checked(sent) == _DELIVERY else None
        finally:
            self._lock.release()

    def lend(self, size):
        """Room in the ring to be filled in place, as a memoryview, and then published. It is good
        until the next call of this writer, by any thread; do not keep it."""
        room = ctypes.c_void_p()
        with self._lock:
            _checked(_library.sd_lend(self._open(), size, ctypes.byref(room)))
        return memoryview((ctypes.c_ubyte * size).from_address(room.value)).cast("B")

    def publish(self, size, kind="output", key=0):
        """Publishes the first `size` bytes of what was lent. The number of the chunk."""
        kind = _index(KINDS, kind, "kind")
        with self._lock:
            reference = ctypes.byref(self._seq)
            _checked(_library.sd_publish(self._open(), kind, key, size, reference))
            return self._seq.value

    def progress(self, progress, total=None, message=""):
        """So much is done, of so much if that is known."""
        message = message.replace("\0", " ").encode("utf-8", "replace")
        with self._lock:
            _checked(_library.sd_progress(self._open(), progress, total or 0.0, message))

    def expect(self, chunk_count):
        """There will be so many chunks."""
        with self._lock:
            _checked(_library.sd_expect(self._open(), chunk_count))

    @property
    def is_stopped(self):
        """Is nothing taken any more?"""
        return _checked(_library.sd_is_stopped(self._open())) == 1

    def complete(self):
        """Everything was published. Waits until the server has taken it."""
        with self._lock:
            name, self._name = self._open(), None
            _checked(_library.sd_complete(name))

    def fail(self, text):
        """It went wrong. Waits until the server knows."""
        text = text.replace("\0", " ").encode("utf-8", "replace")
        with self._lock:
            name, self._name = self._open(), None
            _checked(_library.sd_fail(name, text))

    def __exit__(self, kind, error, trace):
        if self._name is None:
            return
        if kind is None:
            self.complete()
            return
        try:
            self.fail(f"{kind.__name__}: {error}")
        except StreamdoorError:  # The exception that passes is the one to be seen.
            pass


def _bytes(data):
    """Address and length of what stays where it is as long as the third is kept."""
    if isinstance(data, bytes):
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data), data
    view = memoryview(data).cast("B")
    if view.readonly:
        copy = view.tobytes()
        return ctypes.cast(ctypes.c_char_p(copy), ctypes.c_void_p), len(copy), copy
    array = (ctypes.c_ubyte * len(view)).from_buffer(view)
    return ctypes.cast(array, ctypes.c_void_p), len(view), array
