#!/usr/bin/env bash
# The gateway before a real engine, in the foreground: llama.cpp with
# SmolLM2-135M on the CPU, and llmgw before it on $LISTEN (127.0.0.1:8080).
# Ctrl-C or SIGTERM ends both. Needs bin/llmgw, or the one that $LLMGW names.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

listen=${LISTEN:-127.0.0.1:8080}
llmgw=${LLMGW:-$root/bin/llmgw}
model=smollm2-135m
patience=120 # seconds that either may take to start
pids=()

[[ $listen =~ ^[^/]*:[0-9]+$ ]] || die "LISTEN=$listen: want an address such as 127.0.0.1:8080"
[[ -x $llmgw ]] || die "there is no $llmgw: build it first (go build -o bin/llmgw ./cmd/llmgw)"
host=${listen%:*}
[[ -n $host && $host != 0.0.0.0 && $host != "[::]" ]] || host=127.0.0.1
url=http://$host:${listen##*:}
# Else what answers there could be taken for the gateway.
if (exec 3<>"/dev/tcp/$(tr -d '[]' <<<"$host")/${listen##*:}") 2>/dev/null; then
	die "something listens on $listen already: set LISTEN to another address"
fi
need curl curl
"$here/llamacpp.sh" install

logs=$(mktemp -d)

cleanup() {
	local pid
	trap '' INT TERM HUP
	for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
	for _ in {1..100}; do
		alive || break
		sleep 0.1
	done
	for pid in "${pids[@]}"; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	rm -rf "$logs"
}
trap cleanup EXIT
trap 'echo; echo "ended"; exit 0' INT TERM HUP

# alive tells whether any of the two still runs.
alive() {
	local pid
	for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null && return; done
	return 1
}

# fail NAME WHAT shows the end of a log and gives up.
fail() {
	echo "--- the end of $1's log" >&2
	tail -n 30 "$logs/$1" >&2
	die "$1 $2"
}

# await NAME PID COMMAND... waits until the command succeeds.
await() {
	local deadline=$((SECONDS + patience))
	until "${@:3}"; do
		kill -0 "$2" 2>/dev/null || fail "$1" "ended before it was ready"
		((SECONDS < deadline)) || fail "$1" "was not ready after $patience s"
		sleep 0.2
	done
}

"$here/llamacpp.sh" serve 0 >"$logs/address" 2>"$logs/llama-server" &
engine=$!
pids+=("$engine")
await llama-server "$engine" grep -q '^http://' "$logs/address"
address=$(sed -n '1s,^http://,,p' "$logs/address")

"$llmgw" proxy --from "$listen" --to "$address" >"$logs/llmgw" 2>&1 &
gateway=$!
pids+=("$gateway")

lists_model() { curl -sf -m 5 "$url/v1/models" 2>/dev/null | grep -q "\"$model\""; }
await llmgw "$gateway" lists_model

cat <<TEXT

llmgw serves $model on $url, by a real llama.cpp on $address. Try it:

  curl -N $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"$model","stream":true,"messages":[{"role":"user","content":"What is a river?"}]}'

or with OpenAI's Python SDK (.cache/engines/sdk/bin/python has it after engines/sdk.sh install):

  from openai import OpenAI
  client = OpenAI(base_url="$url/v1", api_key="none")
  for chunk in client.chat.completions.create(
      model="$model", stream=True, messages=[{"role": "user", "content": "What is a river?"}]
  ):
      print(chunk.choices[0].delta.content or "", end="", flush=True)

Ctrl-C ends both.
TEXT

wait -n "$engine" "$gateway" || true
if kill -0 "$gateway" 2>/dev/null; then fail llama-server "ended"; else fail llmgw "ended"; fi
