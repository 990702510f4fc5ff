#!/usr/bin/env bash
# The cells of tools/pgo --compare, shorter, with real-time priority: turns-realtime.sh PLAIN PGO
# (two folders with the program bench).
while IFS='|' read -r name words; do
    for round in 1 2 3 4 5; do
        builds="plain pgo"
        [ $((round % 2)) = 1 ] || builds="pgo plain"
        for build in $builds; do
            bench=$1/bench
            [ "$build" = plain ] || bench=$2/bench
            read -ra all <<<"$words --seed $round --json"
            line=$(chrt -r 1 "$bench" "${all[@]}" </dev/null) || exit 1
            printf '{"cell":"%s","build":"%s","round":%d,%s\n' "$name" "$build" "$round" "${line#\{}"
        done
    done
done <<'CELLS'
inline-1|fanout --subscribers 1 --rate 10000 --duration 0.3 --warmup 0.1
inline-16|fanout --subscribers 16 --rate 10000 --duration 0.3 --warmup 0.1
mcp-first|mcp --only streamdoor --rounds 1 --rate 1000 --duration 0.05 --warmup 0 --first 500
sse-1|serve --connections 1 --rate 10000 --duration 0.5 --warmup 0.1
CELLS
