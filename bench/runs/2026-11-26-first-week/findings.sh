#!/usr/bin/env bash
# Shows how each finding of the first week was settled: the command and its output.
# Usage: findings.sh PROGRAM, from the root of the repository. Needs curl, python3, openssl and script.
set -u
program=$(readlink -f "$1"); root=$PWD
work=$(mktemp -d); cd "$work"
export XDG_RUNTIME_DIR=$work NO_COLOR=1; chmod 700 "$work"
streamdoor() { "$program" "$@"; }
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$work"' EXIT
url=http://127.0.0.1:18831
heading() { printf '\n## %s\n' "$*"; }
show() { printf '$ %s\n' "$*" | sed "s#$program#streamdoor#g; s#$work#.#g; s#$root#.#g"; { eval "$@"; } 2>&1 | cut -c1-220 | head -${LINES_MAX:-8} | sed "s#$program#streamdoor#g; s#$work#.#g; s#$root#.#g"; }
exit_code() { printf 'exit code %s\n' "$?"; }
args='--arg chunks=3000 --arg delay_ms=0 --arg chunk_size=3000'
body='{"tool":"slow_data_processor","arguments":{"chunks":3000,"delay_ms":0,"chunk_size":3000}}'
json='content-type: application/json'
serve() { "$program" serve --listen 127.0.0.1:18831 --log json "$@" 2>>serve.log & pids+=($!); last=$!; for _ in $(seq 50); do curl -s -o /dev/null $url/healthz && return; sleep 0.1; done; }

streamdoor run slow_data_processor $args --out whole.txt >/dev/null 2>&1
heading "1 a result that is kept is whole, or says that it is not"
show "streamdoor run slow_data_processor $args --out o.txt; echo exit code \$?; wc -c < o.txt; cmp o.txt whole.txt && echo same"
show "streamdoor run slow_data_processor $args | (sleep 1; cmp - whole.txt && echo same)"
show "streamdoor run slow_data_processor $args --policy drop --out d.txt; echo exit code \$?"
serve
show "streamdoor call $url slow_data_processor $args --out c.txt; echo exit code \$?; cmp c.txt whole.txt && echo same"
heading "2 two steps over HTTP lose nothing"
show "curl -s $url/v1/executions -H '$json' -d '$body' > post.json; python3 -c 'import json; d=json.load(open(\"post.json\")); print(d[\"hold\"])'"
id=$(python3 -c 'import json; print(json.load(open("post.json"))["execution"])'); sleep 1
show "curl -sN '$url/v1/executions/$id/events?format=ndjson' | python3 -c 'import json,sys; e=[json.loads(l) for l in sys.stdin]; print(sum(len(x[\"data\"]) for x in e if x[\"event\"]==\"chunk\"), \"bytes,\", sum(x[\"event\"]==\"gap\" for x in e), \"gaps,\", e[-1][\"state\"])'"
heading "3 a busy disk is no short memory (tests/busy_disk.rs makes one)"
show "streamdoor doctor --keep | grep -A3 psi"
heading "4 a browser sees a page, a program an index"
show "curl -s -H 'accept: text/html' $url/ -w '%{http_code} %{content_type}\n' -o page.html; grep -o '<h1>.*</h1>' page.html; curl -s $url/ | head -c 200"
heading "5 refusals are logged and counted"
show "curl -s -o /dev/null $url/nowhere; sleep 0.2; grep requests_refused serve.log | tail -1; curl -s $url/metrics | grep requests_refused_total | grep unknown_path"
heading "6 README"
show "wc -lw $root/README.md; ls $root/src/guide | tr '\n' ' '"
heading "7 SIGHUP reloads"
show "curl -sN '$url/v1/executions' -H '$json' -d '{\"tool\":\"slow_data_processor\",\"arguments\":{\"chunks\":20,\"delay_ms\":50}}' -H 'accept: application/x-ndjson' > stream.txt & sleep 0.3; kill -HUP $last; wait \$!; tail -1 stream.txt | cut -c1-120; grep reloaded serve.log"
heading "8 two signals at once are one"
kill -TERM "$last"; kill -TERM "$last"; wait "$last"; exit_code
show "grep -c stopped_at_once serve.log; tail -2 serve.log"
heading "9 probes need no token"
printf 'ann %s\n' "$(printf 'a%.0s' $(seq 40))" > tokens; chmod 600 tokens
serve --token-file tokens
show "for p in healthz readyz v1/tools; do curl -s -o /dev/null -w '%{http_code} ' $url/\$p; done"
kill -TERM "$last"; wait "$last"
heading "10 no text controls the terminal (tests/terminal_text.rs tries all commands)"
show "streamdoor run process_file --arg file_path=\$'/nope\\x1b[31m\\u202e' 2>&1 | od -c | head -5"
heading "11 TLS errors in words"
show "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE 2>/dev/null; ls *.pem"
"$program" serve --listen 127.0.0.1:18831 --log json --tls-cert cert.pem --tls-key key.pem 2>>serve.log & pids+=($!); tls=$!; sleep 1
show "streamdoor call https://localhost:18831 slow_data_processor; echo exit code \$?"
show "streamdoor call https://localhost:18831 slow_data_processor --cacert cert.pem --arg chunks=1"
heading "31 plain HTTP to a TLS port"
show "streamdoor call $url slow_data_processor; echo exit code \$?"
show "curl -s $url/; echo curl: exit code \$?"
kill -TERM "$tls"; wait "$tls"
serve
show "curl -s https://127.0.0.1:18831/; echo curl: exit code \$?; sleep 0.2; tail -1 serve.log"
heading "12 built-in tools are hidden behind --mcp, and tools are chosen"
show "streamdoor serve --help | grep -A2 -e --builtin -e --mcp-tools"
heading "13 the output of a ring that has moved on"
id=$(curl -s $url/v1/executions -H "$json" -d '{"tool":"slow_data_processor","arguments":{"chunks":3000,"delay_ms":0,"chunk_size":3000},"hold":"newest"}' | python3 -c 'import json,sys; print(json.load(sys.stdin)["execution"])'); sleep 1
show "curl -s $url/v1/executions/$id/output; echo; curl -s $url/v1/executions/$id | grep -o '\"tail_seq\":[0-9]*'"
heading "14 embedding: the guide says how, with programs that are tested"
show "grep -n 'git = \|poll_next\|tokio' $root/src/guide/embedding.md"
heading "15 one name for one thing"
show "for c in run call watch cat demo; do streamdoor help \$c | grep -o -e '--max-chunks' -e '--limit-chunks' | sort -u; done; curl -s -H 'accept: text/event-stream' -D - -o /dev/null $url/v1/executions -H '$json' -d '{\"tool\":\"slow_data_processor\",\"arguments\":{\"chunks\":1}}' | grep -i content-type"
show "streamdoor serve --help | grep -e --retention -e --spin"
heading "16 did you mean"
show "streamdoor serv; streamdoor run --polcy drop x; streamdoor run slow_data_procesor; streamdoor run slow_data_processor --arg chunk=5; streamdoor | head -3; streamdoor help serve | head -1; streamdoor version"
heading "17 times, filters, labels"
show "curl -s '$url/v1/executions?limit=1&state=completed&tool=slow_data_processor'; echo; curl -s $url/metrics | grep -e executions_ended_total -e execution_duration_seconds_count -e process_resident | head -4; grep execution_ended serve.log | tail -1"
heading "18 packaging"
show "ls $root/tools/ops; grep -n 'package.metadata' $root/Cargo.toml"
heading "19 prerequisites and the first build"
show "grep -n -i 'rust 1\|minutes\|kernel' $root/README.md"
heading "20 demo"
LINES_MAX=40 show "streamdoor demo"
heading "21, 22 one summary line, one line a chunk, only the error if nothing ran"
show "streamdoor run slow_data_processor --arg chunks=3 --arg chunk_size=40; streamdoor run process_file --arg file_path=/nope; streamdoor run slow_data_processor 2>/dev/null | head -1"
heading "23 top (tests/screens has its screens)"
LINES_MAX=16 show "streamdoor top $url --once; head -20 $root/tests/screens/kept/top.txt | tail -6"
heading "24 agent"
show "streamdoor agent --model m --base-url http://127.0.0.1:1/v1 --key-env none --tools serch_files hello; timeout 20 $program agent --model m --base-url http://127.0.0.1:1/v1 --key-env none hello"
kill -TERM "$last"; wait "$last"
heading "25 the banner of serve"
LINES_MAX=14 show "timeout 2 script -qec '$program serve --listen 127.0.0.1:18831' /dev/null"
show "env -u XDG_RUNTIME_DIR timeout 1 $program serve --listen 127.0.0.1:18831 --log json 2>&1 | grep -i door"
heading "26 start errors as JSON"
show "streamdoor serve --log json --listen 1.2.3.4:1; streamdoor serve --log json --retention never"
serve
heading "27 other methods"
show "for m in PATCH TRACE PURGE; do curl -s -o /dev/null -D - -X \$m $url/v1/tools | grep -i -e ^HTTP -e ^allow; done"
heading "28 whole floats"
show "curl -s $url/v1/executions -H '$json' -d '{\"tool\":\"slow_data_processor\",\"arguments\":{\"chunks\":1},\"retention_ms\":1000.0}' | cut -c1-80"
heading "29 OpenAPI (tests/openapi judges it)"
show "curl -s $url/openapi.json | python3 -c 'import json,sys; d=json.load(sys.stdin); print(d[\"servers\"], len(d[\"tags\"]), \"tags;\", sum(\"description\" in o for p in d[\"paths\"].values() for o in p.values() if isinstance(o, dict)), \"descriptions\")'"
heading "30 structured content is not glued to text"
cat > mcp.py <<'P'
import json, sys
for line in sys.stdin:
    asked = json.loads(line); name = asked.get("method")
    if "id" not in asked: continue
    said = {"initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}},
            "tools/list": {"tools": [{"name": "list_files", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "[FILE] a.txt"}], "structuredContent": {"content": "[FILE] a.txt"}}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": said.get(name, {})}), flush=True)
P
show "streamdoor run --mcp 'python3 mcp.py' list_files"
heading "32 HTTP/1.1 and six connections"
show "grep -n -i 'six\|HTTP/2' $root/src/guide/*.md"
heading "33 no execution of this name"
"$program" serve --listen 127.0.0.1:18832 --log json --named-doors 2>>serve.log & pids+=($!); sleep 0.5
show "streamdoor cat --named 0123456789abcdefghjkmnpqrs; echo exit code \$?"
heading "34 messages"
id=$(curl -s $url/v1/executions -H "$json" -d '{"tool":"slow_data_processor","arguments":{"chunks":1}}' | python3 -c 'import json,sys; print(json.load(sys.stdin)["execution"])')
show "streamdoor demo --chunks -1; streamdoor run slow_data_processor --subscribers 99; curl -s -H 'Last-Event-ID: garbage' $url/v1/executions/$id/events; echo; streamdoor call 127.0.0.1:18831 slow_data_processor --arg chunks=1 --arg chunk_size=20"
show "streamdoor run run_command --allow-commands --args-json '{\"argv\":[\"sh\",\"-c\",\"exit 7\"]}'; echo exit code \$?; curl -s $url/v1/executions -H '$json' -H 'accept: application/x-ndjson' -d '{\"tool\":\"slow_data_processor\",\"arguments\":{\"chunks\":7,\"delay_ms\":0}}' | grep -o '\"percentage\":[0-9.]*' | head -3; streamdoor version"
heading "documentation that was wrong"
show "grep -rn 'streamdoor_bytes_waiting\|streamdoor_upstream_calls\b' $root/PERF.md $root/README.md $root/src/guide; grep -n 'tools/c\b\|tools/python' $root/README.md $root/src/guide/*.md | head -3; grep -rn '\*\*Shared\*\* a sub\|\*\*Shared\*\* every' $root/src; grep -rn 'version = \"0.1\" }' $root/README.md $root/src/guide"
show "$root/tools/bench-plots --help | head -2; $root/tools/bench-summary --help | head -2"
