# Runs one block of the guide: `bash prelude.sh BLOCK`. The working folder is a scratch folder.
# PORT, MODEL_PORT, OTHER_PORT and NATS_PORT are free ports of this block, and PROGRAM is the built program.
# Servers are children of this shell, run in the background, and are stopped at the end.
set -euo pipefail

finish() {
  local status=$?
  trap - EXIT
  kill $(jobs -p) 2> /dev/null || true
  wait 2> /dev/null || true
  exit "$status"
}
trap finish EXIT

streamdoor() {
  case "$*" in
    *--print-config* | *--help* | *--check*) "$PROGRAM" "$@" ;;
    serve* | model-script*) start "$@" ;;
    *) "$PROGRAM" "$@" ;;
  esac
}

# Starts a server and returns when it listens. LOG is the file of its output.
start() {
  local arguments=("$@") log=${LOG:-} address=127.0.0.1:$PORT
  [ "$1" = serve ] || address=127.0.0.1:$MODEL_PORT
  [[ " $* " == *" --listen "* ]] || arguments+=(--listen "$address")
  log=${log:-$(mktemp server-XXXXXX.log)}
  : > "$log"
  "$PROGRAM" "${arguments[@]}" > "$log" 2>&1 < /dev/null &
  local server=$!
  until command grep -qE 'listening| at http://' "$log"; do
    if ! kill -0 "$server" 2> /dev/null; then
      local status=0
      wait "$server" || status=$?
      cat "$log" >&2
      return "$status"
    fi
    sleep 0.02
  done
}

# The server of NATS of this block.
nats-server() {
  command nats-server --addr 127.0.0.1 --port "$NATS_PORT" --store_dir nats "$@" > nats.log 2>&1 &
  grep -q 'Server is ready' nats.log
}

# A line of a log may come a moment after what it tells.
grep() {
  local attempt
  for attempt in {1..200}; do
    command grep "$@" && return
    [[ ${!#} == *.log ]] || return 1
    sleep 0.05
  done
  return 1
}

# A refused request is a failure.
curl() {
  local fail=--fail-with-body
  [[ " $* " != *" --fail "* ]] || fail=--fail
  command curl --silent --show-error "$fail" --max-time 60 "$@"
}

# Building takes minutes. The program is built already, so only the profile is checked.
cargo() {
  local profile=release
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ "$1" != --profile ] || profile=$2
    shift
  done
  [ "$profile" = release ] || grep -q "^\[profile.$profile\]" Cargo.toml
  [ $# -eq 0 ] || streamdoor "${@:2}"
}

# systemd is not asked. A unit that is enabled must have been installed.
systemctl() {
  local name=${!#}
  [[ $name == *.* ]] || name+=.service
  [ "$1" != enable ] || test -e "etc/systemd/system/$name"
}
journalctl() { :; }

# The newest execution of the server: the one that the text calls ID.
newest() {
  local id attempt
  for attempt in {1..100}; do
    id=$(command curl --silent "http://127.0.0.1:$PORT/v1/executions" |
      grep -oE '"execution":"[^"]+"' | tail -n 1 | cut -d '"' -f 4) || true
    if [ -n "$id" ]; then
      echo "$id"
      return
    fi
    sleep 0.05
  done
  echo "the server has no execution" >&2
  return 1
}

# A server for blocks that start none themselves. It offers `slow_data_processor`, files and
# commands. With FIXTURE=executed it has an execution.
if [ -n "${FIXTURE:-}" ]; then
  LOG=fixture.log start serve --files-root . --allow-commands uname --allow-commands wc \
    --named-doors
  if [ "$FIXTURE" = executed ]; then
    curl "http://127.0.0.1:$PORT/v1/executions" -H 'content-type: application/json' \
      -d '{"tool": "slow_data_processor", "arguments": {"chunks": 5, "delay_ms": 10}}' > /dev/null
  fi
fi
if [ -n "${OTHER_FIXTURE:-}" ]; then
  LOG=other.log start serve --listen "127.0.0.1:$OTHER_PORT" --config web.toml
fi
if [ -n "${MODEL_FIXTURE:-}" ]; then
  LOG=model.log start model-script tools/model-scripts/two-tools.toml
fi

source "$1"
