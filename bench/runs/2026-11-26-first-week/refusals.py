#!/usr/bin/env python3
"""Streams 3,000 chunks, quiet and beside 10,000 refused requests a second, in turns.

Usage: refusals.py PROGRAM [BATCH]   (standard library)

BATCH is the number of requests that are sent at once, by default 20.

It prints p50 and p99 of the delivery latency (the bounds of the buckets of /metrics), and how many of
1,000 chunks came later than some of these bounds. It counts the lines of the log. The server has the
first CPU, and the clients have the second one.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

CHUNKS = 3_000
BATCH = int(sys.argv[2]) if len(sys.argv) == 3 else 20
REFUSALS_PER_SECOND = 10_000
ROUNDS = 8
LATER = (50e-6, 100e-6, 250e-6, 500e-6)
HEAD = "{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n"


def listening(path):
    """Waits until the log says where the server listens."""
    while True:
        time.sleep(0.05)
        for line in open(path):
            record = json.loads(line)
            if record["event"] == "listening":
                host, port = record["address"].split("//")[1].split(":")
                return host, int(port)


def ask(place, method, path, body=b""):
    with socket.create_connection(place) as connection:
        connection.sendall(HEAD.format(method, path, len(body)).encode() + body)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def histogram(place):
    """The cumulative counts of the delivery latency of streams, by upper bound."""
    counts = {}
    for line in ask(place, "GET", "/metrics").decode().splitlines():
        if line.startswith("streamdoor_delivery_latency_seconds_bucket") and 'stream"' in line:
            counts[line.split('le="')[1].split('"')[0]] = int(float(line.split()[-1]))
    return counts


def percentile(before, after, share):
    deltas = sorted((float(bound), after[bound] - before.get(bound, 0)) for bound in after)
    return next(bound for bound, count in deltas if count >= share * deltas[-1][1])


def stream(place):
    """Runs a tool and describes the latency of its delivery."""
    before = histogram(place)
    arguments = {"chunks": CHUNKS, "delay_ms": 1, "chunk_size": 100}
    call = json.dumps({"tool": "slow_data_processor", "arguments": arguments}).encode()
    ask(place, "POST", "/v1/executions?format=ndjson", call)
    after = histogram(place)
    later = {bound: 1000 - 1000 * (after[bound] - before.get(bound, 0)) / CHUNKS for bound in after}
    shown = [f"{later[bound]:.1f} > {float(bound) * 1e6:g} us" for bound in after if float(bound) in LATER]
    p50, p99 = percentile(before, after, 0.5), percentile(before, after, 0.99)
    return f"p50 <= {p50 * 1e6:g} us, p99 <= {p99 * 1e6:g} us; of 1,000: " + ", ".join(shown)


class Flood(threading.Thread):
    """Sends requests that are refused, until `is_over`."""

    def __init__(self, place):
        super().__init__()
        self.place, self.is_over, self.count = place, False, 0

    def run(self):
        batch = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n" * BATCH
        with socket.create_connection(self.place) as connection:
            due = time.time()
            while not self.is_over:
                answered = 0
                connection.sendall(batch)
                while answered < BATCH:
                    answered += connection.recv(1 << 16).count(b"HTTP/1.1 404")
                self.count += BATCH
                due += BATCH / REFUSALS_PER_SECOND
                time.sleep(max(0, due - time.time()))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip())
    os.sched_setaffinity(0, {1})
    with tempfile.NamedTemporaryFile() as log:
        command = ["taskset", "-c", "0", sys.argv[1], "serve", "--log", "json", "--listen", "127.0.0.1:0", "--door", "off"]
        with subprocess.Popen(command, stderr=log) as server:
            place = listening(log.name)
            for _ in range(ROUNDS):
                print("quiet", stream(place), flush=True)
                flood, started = Flood(place), time.time()
                flood.start()
                latency = stream(place)
                flood.is_over = True
                flood.join()
                rate = flood.count / (time.time() - started)
                print(f"flood {latency}; {rate:.0f} refusals/s", flush=True)
            server.terminate()
        records = [json.loads(line) for line in open(log.name)]
    refused = [record["count"] for record in records if record["event"] == "requests_refused"]
    print(f"{len(records)} lines of the log; {len(refused)} are refusals, of {sum(refused)} in all")


main()
