#!/bin/bash
# A stand-in for the MCP servers of others, over standard input and output, with two tools.
answer() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
schema='"inputSchema":{"type":"object"}'
while read -r line; do
  [[ $line =~ \"id\":([0-9]+|\"[^\"]*\") ]] || continue # A notification.
  id=${BASH_REMATCH[1]}
  case $line in
    *'"initialize"'*)
      answer '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},
        "serverInfo":{"name":"stand-in","version":"1"}}' | tr -d '\n' && echo
      ;;
    *'"tools/list"'*)
      answer "\"result\":{\"tools\":[{\"name\":\"git_log\",$schema},{\"name\":\"git_reset\",$schema}]}"
      ;;
    *'"tools/call"'*) answer '"result":{"content":[{"type":"text","text":"a commit"}]}' ;;
    *) answer '"error":{"code":-32601,"message":"no such method"}' ;;
  esac
done
