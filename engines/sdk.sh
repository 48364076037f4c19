#!/usr/bin/env bash
# OpenAI's Python SDK.
#
#   sdk.sh install            into .cache/engines/sdk, once
#   sdk.sh run FILE [ARG ...] runs a Python program that uses it
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install() {
	need_python 11 13
	make_venv sdk
}

case ${1:-} in
install)
	install
	;;
run)
	[[ $# -ge 2 ]] || die "run needs a file"
	install
	exec "$cache/sdk/bin/python" "${@:2}"
	;;
*)
	die "usage: install | run FILE [ARG ...]"
	;;
esac
