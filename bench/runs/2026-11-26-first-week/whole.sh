#!/usr/bin/env bash
# Sends 9,000,000 bytes through every way out with the defaults, and compares the hashes.
# Usage: whole.sh PROGRAM
set -u
program=$(readlink -f "$1"); work=$(mktemp -d); cd "$work"
export XDG_RUNTIME_DIR=$work; chmod 700 "$work"
url=http://127.0.0.1:18841
json='content-type: application/json'
body='{"tool":"slow_data_processor","arguments":{"chunks":3000,"delay_ms":0,"chunk_size":3000}}'
args=(slow_data_processor --arg chunks=3000 --arg delay_ms=0 --arg chunk_size=3000)
"$program" serve --listen 127.0.0.1:18841 2> serve.log & server=$!
trap 'kill "$server"; rm -rf "$work"' EXIT
sleep 1
hash() { sha256sum < "$1" | cut -c1-16; }
tell() { printf '%-34s exit code %s, %s bytes, %s\n' "$1" "$2" "$(wc -c < "$3")" "$(hash "$3")"; }
post() { curl -s $url/v1/executions -H "$json" -d "$body" | grep -o '"execution":"[^"]*"' | cut -d'"' -f4; }

"$program" run "${args[@]}" --out a 2>/dev/null; tell "run --out" $? a
"$program" run "${args[@]}" 2>/dev/null | (sleep 1; cat) > b; tell "run, into a slow pipe" "${PIPESTATUS[0]}" b
"$program" call $url "${args[@]}" --out c 2>/dev/null; tell "call --out" $? c
"$program" call $url "${args[@]}" 2>/dev/null > d; tell "call, redirected" $? d
id=$(post); sleep 1; "$program" watch $url "$id" 2>/dev/null > e; tell "watch, a second later" $? e
"$program" cat --tool "${args[@]}" 2>/dev/null > f; tell "cat --tool (shared memory)" $? f
id=$(post); sleep 1; curl -sN "$url/v1/executions/$id/output" > g; tell "curl: POST, then GET output" $? g
id=$(post); sleep 1
curl -sN "$url/v1/executions/$id/events?format=ndjson" | python3 -c '
import json, sys
for event in map(json.loads, sys.stdin):
    if event["event"] == "chunk": sys.stdout.write(event["data"])' > h
tell "curl: POST, then GET events" $? h
"$program" run "${args[@]}" --policy drop --out i 2> i.err; tell "run --policy drop" $? i; tail -1 i.err
"$program" call $url "${args[@]}" --policy drop --out j 2> j.err; tell "call --policy drop" $? j; tail -1 j.err
