"""What a server may do to a worker with the size and the shape of what it sends: nothing that other runs would feel."""

import asyncio
import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.chat_pieces import Calls
from activities.providers.failures import Endpoint, from_response
from activities.providers.http_model import ERROR_PATIENCE, TURN_EVENTS, HttpModel
from activities.providers.interface import Completion, Delta, ModelFailure
from activities.providers.messages_stream import MessagesStream
from activities.providers.readings import as_list, as_object, count
from activities.providers.secrecy import NAME_MAX_CHARACTERS
from activities.providers.unpacking import PIECE_MAX_BYTES, unpacked
from tests.providers import asking_messages, asking_responses
from tests.providers.asking import KEY, answered, asked, failed
from tests.providers.chat_chunks import call_piece, chunk
from tests.providers.model_server import EVENT_STREAM, Canned, ModelServer, Response, Streamed, chat_reply, server_sent
from tests.support.loopback import loopback_client

LONG_KEY = "sk-TEST-TOKEN-9-and-more"
TARGET = Endpoint("http://host/v1", "OPENAI_API_KEY")


@contextmanager
def in_linear_time() -> Iterator[None]:
    """Fails what needs the square of its input: some minutes, where a second is enough."""
    began = time.process_time()
    yield
    assert time.process_time() - began < 10


async def watched(answer: Canned, key: str = KEY) -> tuple[Completion, list[Delta]]:
    seen: list[Delta] = []

    async def see(delta: Delta) -> None:
        seen.append(delta)

    async with ModelServer([answer]) as server, loopback_client() as http:
        return await HttpModel(http, ChatCompletions(), server.base_url, key).complete(asked(), see), seen


async def test_a_key_in_a_text_of_many_parts_takes_no_longer_to_hide() -> None:
    parts: list[JsonValue] = [{"type": "image", "url": ""}, {"type": "text", "text": f"{LONG_KEY} "}]
    parts += [{"type": "text", "text": "forty characters of a text, more or less"}] * 30_000
    with in_linear_time():
        completion, _ = await watched(chat_reply({"content": parts}), LONG_KEY)
    assert completion.text.startswith("*** forty")
    lengths = [count(as_object(part).get("text")) for part in completion.opaque]
    assert sum(lengths) == len(completion.text)


@pytest.mark.parametrize("cut", range(len(LONG_KEY) + 1))
async def test_the_parts_of_a_text_keep_their_places_around_a_hidden_key(cut: int) -> None:
    halves = f"a{LONG_KEY[:cut]}", f"{LONG_KEY[cut:]}b{LONG_KEY}"
    image: JsonValue = {"type": "image", "url": ""}
    texts: list[JsonValue] = [{"type": "text", "text": half} for half in halves]
    completion, _ = await watched(chat_reply({"content": [texts[0], image, texts[1]]}), LONG_KEY)
    first, _, second = completion.opaque
    assert completion.text == "a***b***"
    # The mark stands where the key ends.
    assert (first, second) == (({"text": 4}, {"text": 4}) if cut == len(LONG_KEY) else ({"text": 1}, {"text": 7}))


def test_calls_without_a_number_are_found_by_their_id() -> None:
    calls = Calls()
    with in_linear_time():
        for arguments in "{}":
            for number in range(25_000):
                function: JsonValue = {"name": "look", "arguments": arguments}
                assert calls.add({"id": f"c{number}", "function": function})[0] == number
    assert len(calls.value()) == 25_000


async def test_a_name_that_goes_on_and_on_is_not_put_together() -> None:
    pieces = [chunk(call_piece(0, name=letter * 150)) for letter in "abcde"]
    completion, deltas = await watched(Streamed.of_events(*pieces, chunk({}, "stop"), "[DONE]"))
    assert len(completion.calls[0].name) == 300
    assert max(len(delta.name) for delta in deltas) <= NAME_MAX_CHARACTERS


NAME = "n" * (NAME_MAX_CHARACTERS + 1)


async def test_nobody_watches_a_name_that_is_no_tools() -> None:
    too_long = asking_messages.streamed(asking_messages.reply(asking_messages.tool_use("t", NAME, x=1)))
    _, of_messages = await asking_messages.watched(too_long)
    of_responses: list[Delta] = []
    item = asking_responses.called("{}", name=NAME)
    await asking_responses.streamed(
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{}"},
        asking_responses.ending(item),
        deltas=of_responses,
    )
    for name, expected in ((NAME, ""), (NAME[1:], NAME[1:])):
        begin, end = chunk(call_piece(0, "c", name, "{")), chunk(call_piece(0, arguments="}"), "stop")
        _, of_chat = await watched(Streamed.of_events(begin, end, "[DONE]"))
        assert {delta.name for delta in of_chat} == {expected}
    for deltas in (of_messages, of_responses):
        assert {delta.name for delta in deltas if delta.kind == "tool_call"} == {""}


def test_citations_gather_in_linear_time() -> None:
    stream = MessagesStream(TARGET)
    block: JsonValue = {"type": "text", "text": "x", "citations": [0]}
    begin: JsonValue = {"type": "content_block_start", "index": 0, "content_block": block}
    citing: JsonValue = {"type": "citations_delta", "citation": 1}
    told = json.dumps({"type": "content_block_delta", "index": 0, "delta": citing})
    with in_linear_time():
        list(stream.add("", json.dumps(begin)))
        for _ in range(150_000):
            list(stream.add("", told))
    (whole,) = as_list(stream.reply()["content"])
    assert as_object(whole)["citations"] == [0, *[1] * 150_000]


@pytest.mark.parametrize("words", ["token count ", "request too large for ", "prompt is  too", "(incorrect|"])
@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_long_error_made_to_be_searched_slowly_is_not(status: int, words: str) -> None:
    body = json.dumps({"error": {"message": words * (800_000 // len(words))}}).encode()
    with in_linear_time():
        failure = from_response(status, {}, body, TARGET)
    assert failure.type in ("ModelBadRequest", "ModelAuthentication", "ModelUnavailable")


async def test_while_a_stream_is_read_others_have_their_turn() -> None:
    turns = told = most = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    seen = 0

    async def see(_: Delta) -> None:
        nonlocal told, seen, most
        told, seen = (told + 1 if turns == seen else 1), turns
        most = max(most, told)

    # All in one piece, and some in one event.
    piece: JsonValue = {"index": 0, "function": {"arguments": "x"}}
    many = server_sent(chunk({"tool_calls": [piece] * 500}))
    body = server_sent(chunk({"content": "x"})) * 500 + many + server_sent(chunk({}, "stop")) + server_sent("[DONE]")
    async with ModelServer([Response(200, EVENT_STREAM, body)]) as server, loopback_client() as http:
        task = asyncio.create_task(others())
        completion = await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked(), see)
        task.cancel()
    assert len(completion.text) == 500
    assert 1 < most <= TURN_EVENTS


PLAIN = chat_reply({"content": "Hi"})
PACKED: dict[str, bytes] = {"gzip": gzip.compress(PLAIN.body), "X-GZIP": gzip.compress(PLAIN.body)}
PACKED |= {"deflate": zlib.compress(PLAIN.body), "identity": PLAIN.body, "": PLAIN.body}


@pytest.mark.parametrize("coding", PACKED)
async def test_a_reply_may_be_packed(coding: str) -> None:
    async with (
        ModelServer([Response(200, {"content-encoding": coding}, PACKED[coding])]) as server,
        loopback_client() as http,
    ):
        completion = await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked())
        assert server.requests[0].headers["accept-encoding"] == "gzip"
    assert completion.text == "Hi"


@pytest.mark.parametrize("size", [1, 7, 1_000_000])
async def test_a_stream_may_be_packed(size: int) -> None:
    said = chunk({"content": "é" * 200_000}), chunk({}, "stop"), "[DONE]"
    packed = gzip.compress(b"".join(server_sent(event) for event in said))
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    completion = await answered(Streamed(200, {**EVENT_STREAM, "content-encoding": "gzip"}, pieces=pieces))
    assert completion.text == "é" * 200_000


async def test_what_is_small_only_on_the_wire_is_unpacked_piece_by_piece() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    answers = [Response(200, {"content-encoding": "gzip"}, bomb)] * 2
    async with ModelServer(answers) as server, loopback_client() as http:
        async with http.stream("POST", f"{server.base_url}/x", json={}) as response:
            sizes = [len(piece) async for piece in unpacked(response)]
        with pytest.raises(ModelFailure, match="more than 16777216 bytes"):
            await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked())
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= PIECE_MAX_BYTES


@pytest.mark.parametrize("coding", ["gzip, gzip", "br", "zstd", "compress", "gzip;q=1"])
async def test_what_nobody_asked_for_is_not_unpacked(coding: str) -> None:
    twice = gzip.compress(gzip.compress(PLAIN.body))
    failure = await failed(Response(200, {"content-encoding": coding}, twice))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)
    assert "packed as" in str(failure)


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"content-encoding": "gzip"}, b"no gzip"),
        (401, {"content-encoding": "br"}, b"no gzip"),
        (401, {"content-length": "1000", "connection": "close"}, b'{"error":'),
        Streamed(401, {"content-type": "application/json"}, pieces=(b'{"error":{"mess',), cut=True),
    ],
)
async def test_the_status_of_an_error_counts_though_its_body_cannot_be_read(answer: Canned) -> None:
    failure = await failed(answer)
    assert (failure.type, failure.retryable) == ("ModelAuthentication", False)


async def test_an_error_whose_body_never_ends_is_not_waited_for() -> None:
    async def drops() -> AsyncIterator[bytes]:
        yield b'{"error":'
        await asyncio.Event().wait()

    async with asyncio.timeout(ERROR_PATIENCE + 20):
        failure = await failed(Streamed(429, {"retry-after": "7"}, pieces=drops()))
    assert (failure.type, failure.retryable, failure.retry_after) == ("ModelUnavailable", True, 7.0)
