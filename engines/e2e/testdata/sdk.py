#!/usr/bin/env python3
"""Uses OpenAI's SDK against a gateway as an application would; ends with an AssertionError where it falls short."""

import argparse

import openai

ap = argparse.ArgumentParser(description=__doc__)
ap.add_argument("--url", required=True, help="gateway without keys, without /v1")
ap.add_argument("--keyed-url", required=True, help="the same gateway, but with a key")
ap.add_argument("--key", required=True)
ap.add_argument("--model", required=True)
ap.add_argument("--alias", required=True, help="another name of the model")
ap.add_argument("--embedding", required=True, help="a model for embeddings")
args = ap.parse_args()

client = openai.OpenAI(base_url=args.url + "/v1", api_key="none", max_retries=0, timeout=120)
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell a story about a river."}]
call = {"model": args.model, "messages": messages, "max_tokens": 12, "temperature": 0, "seed": 1}


def fails(error, status, code, function, **kwargs):
    try:
        function(**kwargs)
    except error as e:
        assert type(e) is error and e.status_code == status, repr(e)
        assert isinstance(e.body, dict) and e.body["message"], e.body
        assert code is None or e.code == code, (e.code, e.body)
        return
    raise AssertionError(f"{error.__name__} expected")


def listed(c):
    return {m.id for m in c.models.list()}


# Models.
assert {args.model, args.alias, args.embedding} <= listed(client), listed(client)
for name in (args.model, args.alias):
    assert client.models.retrieve(name).id == name

# Chat, whole and streamed.
answer = client.chat.completions.create(**call)
assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content, answer
assert 0 < answer.usage.completion_tokens <= 12, answer.usage
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, answer.usage

chunks = list(client.chat.completions.create(**call, stream=True))
assert all(c.usage is None and len(c.choices) == 1 for c in chunks), "usage in a stream that did not ask for it"
assert sum(bool(c.choices[0].delta.content) for c in chunks) > 0, chunks
assert chunks[-1].choices[0].finish_reason in ("stop", "length"), chunks[-1]
text = "".join(c.choices[0].delta.content or "" for c in chunks)

chunks = list(client.chat.completions.create(**call, stream=True, stream_options={"include_usage": True}))
assert not chunks[-1].choices and chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens, chunks[-1]
assert 0 < chunks[-1].usage.completion_tokens <= 12, chunks[-1].usage
assert text == "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), "another answer at temperature 0"

with client.chat.completions.create(**(call | {"model": args.alias, "max_tokens": 500}), stream=True) as stream:
    next(iter(stream))  # and leave

raw = client.chat.completions.with_raw_response.create(**call)
assert raw.headers["x-llmgw-replica"] and raw.headers["x-request-id"], raw.headers

# Completions and embeddings.
whole = client.completions.create(model=args.model, prompt="The sky is", max_tokens=6, temperature=0)
assert whole.usage.completion_tokens > 0 and whole.choices[0].finish_reason in ("stop", "length"), whole
parts = list(client.completions.create(model=args.model, prompt="The sky is", max_tokens=6, temperature=0, stream=True))
assert all(len(p.choices) == 1 for p in parts), parts  # llama.cpp has usage in its last one, unasked
assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text, (parts, whole)

vectors = client.embeddings.create(model=args.embedding, input=["hello", "world"])  # asks for base64
assert len(vectors.data) == 2 and len(vectors.data[0].embedding) > 1, vectors.usage
plain = client.embeddings.create(model=args.embedding, input=["hello", "world"], encoding_format="float")
assert all(abs(a - b) < 1e-3 for a, b in zip(plain.data[0].embedding, vectors.data[0].embedding, strict=True))

# Errors.
chat = client.chat.completions.create
fails(openai.NotFoundError, 404, "model_not_found", chat, **(call | {"model": "nope"}))
fails(openai.NotFoundError, 404, "model_not_found", client.models.retrieve, model="nope")
fails(openai.BadRequestError, 400, None, chat, **(call | {"temperature": "hot"}))
long = [{"role": "user", "content": "word " * 4000}]
fails(openai.BadRequestError, 400, "context_length_exceeded", chat, **(call | {"messages": long}))
fails(openai.BadRequestError, 400, "context_length_exceeded", chat, **(call | {"messages": long, "stream": True}))

# Keys.
for key in ("none", "sk-llmgw-other"):
    stranger = openai.OpenAI(base_url=args.keyed_url + "/v1", api_key=key, max_retries=0)
    fails(openai.AuthenticationError, 401, "invalid_api_key", stranger.chat.completions.create, **call)
    fails(openai.AuthenticationError, 401, "invalid_api_key", stranger.models.list)
known = openai.OpenAI(base_url=args.keyed_url + "/v1", api_key=args.key, max_retries=0)
assert args.model in listed(known)
assert known.chat.completions.create(**call).choices[0].message.content

print(f"openai {openai.__version__}: {args.model}: all well")
