#!/usr/bin/env python3
"""Runs the HTTP server of llama.cpp that is inside the xllamacpp wheel, on loopback, until SIGTERM or SIGINT.

Its address is the first line on standard output, once the model is loaded.
"""

import argparse
import signal

import xllamacpp


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("model", help="GGUF file")
    ap.add_argument("port", type=int, help="0 takes a free one")
    ap.add_argument("--alias", default="smollm2-135m", help="name under which the model is served")
    ap.add_argument("--parallel", type=int, default=2, help="slots, each with an equal share of the context")
    ap.add_argument("--ctx", type=int, default=4096, help="tokens of context in all")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--embedding", action="store_true", help="serve embeddings too")
    a = ap.parse_args()

    p = xllamacpp.CommonParams()
    p.model.path = a.model
    p.model_alias = {a.alias}
    p.hostnames = ["127.0.0.1"]
    p.port = a.port
    p.n_parallel = a.parallel
    p.n_ctx = a.ctx
    p.cpuparams.n_threads = a.threads
    p.cpuparams_batch.n_threads = a.threads
    p.endpoint_metrics = p.endpoint_slots = p.endpoint_props = True
    p.use_jinja = True
    p.embedding = a.embedding

    # Blocked before the server makes its threads, which inherit the mask: a
    # signal that comes while the model loads waits for sigwait.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)
    signal.sigwait(ends)
    del server


if __name__ == "__main__":
    main()
