"""Faults that others' agents had with models, as they were reported, over each of the APIs: whole and streamed."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, get_args

import pytest
from pydantic import BaseModel, JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import CancelledError

from activities.catalog import Catalog, CatalogError
from activities.delta_sinks import Callback
from activities.providers.http_model import HttpModel
from activities.providers.interface import CompletionRequest, ModelFailure
from activities.tooling import tool
from contracts.activities import ModelReply, ModelRequest
from contracts.hints import EMPTY_REPLY_HINT
from contracts.messages import Message, Usage
from contracts.models import ModelSettings
from contracts.runs import AgentRunInput, AgentRunResult, AgentRunState
from runtime.serving import agent_worker
from tests.providers import asking_messages, asking_responses, chat_chunks
from tests.providers.legality_messages import WhatItGave
from tests.providers.model_server import EVENT_STREAM, ModelServer, RecordedConversation, Response, Streamed
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import (
    Harness,
    attempts,
    event_of,
    events_of,
    failure_of,
    histories,
    state_of,
    transcript_of,
)
from tests.support.loopback import loopback_client
from tests.support.three_apis import (
    APIS,
    DIALECTS,
    KEY,
    RULES,
    Call,
    calls_in,
    items_of,
    model_attempts,
    results_in,
    said,
    serving,
    spec,
)
from tests.support.tool_worker import outcomes_of
from tests.support.watching import Relay, Viewer
from workflows.carry import Carry

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
EACH_API = pytest.mark.parametrize("api", APIS)

ran: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool(side_effect="write")
def lookup(q: str) -> str:
    """Look something up."""
    ran.append(q)
    return f"found {q}"


@tool(side_effect="write")
def noop() -> str:
    """Does nothing."""
    ran.append("noop")
    return ""


@tool(side_effect="write")
def write(path: str, content: str = "") -> str:
    """Write a file."""
    ran.append(path)
    return "written"


@tool(side_effect="write")
def build(steps: list[str]) -> str:
    """Run commands."""
    ran.append(steps)
    return "built"


@tool(side_effect="write")
def clean(dir: str, only: list[str]) -> str:
    """Clean a directory."""
    ran.append(dir)
    return "cleaned"


# -- a label next to a content that it does not describe ---------------------------------------------------------


@EACH_API
@BOTH_WAYS
@pytest.mark.parametrize("label", ["stop", "other", None])
async def test_r01_calls_run_once_whatever_the_label_says(
    harness: Harness, api: str, stream: bool, label: str | None
) -> None:
    asked = said(api, Call("lookup", '{"q":"a"}'), text="Let me look.", label=label, stream=stream)
    done = said(api, text="Done.", stream=stream)
    async with serving(harness, api, spec(api, lookup), asked, done) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
    assert (result.status, result.text, result.rounds, ran) == ("completed", "Done.", 1, ["a"])
    assert results_in(api, server.requests[1].json) == [("call_1", "found a")]
    assert result.usage == Usage(input_tokens=20, output_tokens=16)


NOTHING = {
    "chat": Response.of(
        {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None}}]}
    ),
    "responses": asking_responses.replied(),
    "messages": Response.of(
        {
            "type": "message",
            "role": "assistant",
            "stop_reason": "tool_use",
            "content": [],
            "usage": {"input_tokens": 5, "output_tokens": 1},
        }
    ),
}


@EACH_API
@BOTH_WAYS
async def test_r01_calls_that_never_come_are_asked_for_within_a_bound(harness: Harness, api: str, stream: bool) -> None:
    nothing = said(api, label="calls", stream=True) if stream else NOTHING[api]
    async with serving(harness, api, spec(api, lookup), nothing, nothing, nothing) as server:
        run = await harness.start(PROMPT)
        error, partial = await failure_of(run)
        assert await model_attempts(harness, run) == [1, 1, 1]
    assert error.type == "ModelBehaviour"
    assert (partial.rounds, ran) == (0, [])
    corrections = [str(items_of(api, request.json)).count(EMPTY_REPLY_HINT) for request in server.requests]
    assert corrections == [0, 1, 2]


# -- a turn with nothing in it -----------------------------------------------------------------------------------


@EACH_API
@BOTH_WAYS
@pytest.mark.parametrize("empty", [None, "", " \n"])
async def test_r03_what_is_empty_never_goes_back(harness: Harness, api: str, stream: bool, empty: str | None) -> None:
    replies = [
        said(api, text=empty, stream=stream),
        said(api, Call("noop", "{}"), text=empty, label="calls", stream=stream),
        said(api, text="Done.", stream=stream),
    ]
    async with serving(harness, api, spec(api, noop), *replies) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
    assert (result.text, ran) == ("Done.", ["noop"])
    # One short hint, and no trace of the turn that it answers.
    second = items_of(api, server.requests[1].json)
    assert [item["role"] for item in second if item["role"] != "system"] == ["user", "user"]
    assert str(second).count(EMPTY_REPLY_HINT) == 1
    ((call_id, told),) = results_in(api, server.requests[2].json)
    assert call_id == "call_1"
    assert "error" not in told


@EACH_API
async def test_r03_empty_turns_count_though_there_is_a_good_one_before_them(harness: Harness, api: str) -> None:
    empty = said(api)
    replies = [empty, said(api, Call("noop", "{}"), label="calls"), empty, empty, empty]
    async with serving(harness, api, spec(api, noop), *replies):
        error, partial = await failure_of(await harness.start(PROMPT))
    assert (error.type, partial.rounds) == ("ModelBehaviour", 1)


# -- values that cannot be encoded -------------------------------------------------------------------------------


@tool(side_effect="write")
def save(text: str) -> str:
    """Save a text."""
    ran.append(text)
    return "ok \ud83d"


@tool(side_effect="write")
def score() -> dict[str, float]:
    """Give a score."""
    ran.append("score")
    return {"score": float("nan"), "max": float("inf")}


@tool(side_effect="write")
def blob() -> bytes:
    """Give bytes."""
    ran.append("blob")
    return b"\xff\xfe"


def payloads_in(message: Any) -> Iterator[Payload]:
    """Every payload of a message of the server."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            values = value.values()
        else:
            values = value if field.is_repeated else [value]
        for item in values:
            if hasattr(item, "ListFields"):
                yield from payloads_in(item)


def no_such_number(name: str) -> None:
    raise AssertionError(f"{name} in a payload")


def check_payloads(history: WorkflowHistory) -> None:
    """All JSON that is stored is JSON by the letter, in UTF-8."""
    checked = 0
    for event in history.events:
        for payload in payloads_in(event):
            if payload.metadata.get("encoding") == b"json/plain":
                text = json.dumps(json.loads(payload.data.decode(), parse_constant=no_such_number), ensure_ascii=False)
                text.encode()
                checked += 1
    assert checked > 5


@EACH_API
@BOTH_WAYS
async def test_r05_what_cannot_be_encoded_crosses_every_boundary_once(harness: Harness, api: str, stream: bool) -> None:
    arguments = '{"text":"hi \\ud83d"}'
    assert arguments == r'{"text":"hi \ud83d"}'
    replies = [
        said(
            api,
            Call("save", arguments),
            Call("score", "{}", "call_2"),
            Call("blob", "{}", "call_3"),
            text="Half \ud83d",
            label="calls",
            stream=stream,
        ),
        said(api, text="Seen \ud83d.", stream=stream),
    ]
    async with serving(harness, api, spec(api, save, score, blob), *replies) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
        (history,) = await histories(harness.client, run.id)
        replies_told = [event.data for event in await events_of(run) if event.type == "model_completed"]
        results = await outcomes_of(run)
    assert ran == ["hi \ufffd", "score", "blob"]
    # In the first reply the text and the arguments, in the second the text; of the tools, the first one's.
    assert [told["replaced_characters"] for told in replies_told] == [2, 1]
    assert [outcome.metadata.get("replaced_characters") for outcome in results] == [1, None, None]
    assert result.text == "Seen \ufffd."
    for name, times in (("call_model", 2), ("save", 1), ("score", 1), ("blob", 1)):
        assert list(attempts(history, name)) == [1] * times
    check_payloads(history)
    assert calls_in(api, server.requests[1].json)["call_1"] == {"text": "hi \ufffd"}
    first, second, third = (text for _, text in results_in(api, server.requests[1].json))
    assert first == "ok \ufffd"
    assert json.loads(second) == {"score": "NaN", "max": "Infinity"}
    # Bytes that are no text are base64.
    assert "//4=" in third or "__4=" in third


# -- R-x02: opaque blocks ----------------------------------------------------------------------------------------------

THINKING: JsonValue = {"type": "thinking", "thinking": "t", "signature": "s1"}
REDACTED: JsonValue = {"type": "redacted_thinking", "data": "zz"}
USE: JsonValue = {"type": "tool_use", "id": "toolu_1", "name": "noop", "input": {}}


@BOTH_WAYS
@pytest.mark.parametrize("signature", ["s1", ""])
async def test_rx02_opaque_blocks_come_back_first_and_unchanged(harness: Harness, stream: bool, signature: str) -> None:
    thinking: JsonValue = {"type": "thinking", "thinking": "t", "signature": signature}
    content = [thinking, REDACTED, USE]
    message = asking_messages.reply(*content, stop_reason="tool_use")
    first = asking_messages.streamed(message) if stream else Response.of(message)
    rules = WhatItGave([content]).request_illegality
    done = said("messages", text="Done.", stream=stream)
    async with serving(harness, "messages", spec("messages", noop), first, done, rules=rules) as server:
        assert (await (await harness.start(PROMPT)).result()).text == "Done."
    back = [item for item in items_of("messages", server.requests[1].json) if item["role"] == "assistant"]
    plain = [{key: value for key, value in item.items() if key not in ("role", "cache_control")} for item in back]
    assert plain == ([REDACTED, USE] if signature == "" else [THINKING, REDACTED, USE])


# -- arguments that are no JSON ----------------------------------------------------------------------------------

BROKEN = '{"path": "/tmp/a", "content": "abc'


@EACH_API
@BOTH_WAYS
async def test_r06_a_malformed_call_is_told_kept_and_legal(harness: Harness, api: str, stream: bool) -> None:
    asked = said(api, Call("write", BROKEN), label="calls", stream=stream)
    async with serving(harness, api, spec(api, write), asked, said(api, text="I see.", stream=stream)) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
        invalid = await event_of(run, "tool_invalid")
    assert (result.text, ran) == ("I see.", [])
    assert calls_in(api, server.requests[1].json) == {"call_1": {}}
    ((call_id, told),) = results_in(api, server.requests[1].json)
    assert call_id == "call_1"
    assert "the arguments are not valid JSON" in told
    assert invalid.data["raw"] == BROKEN


@pytest.mark.parametrize(
    ("first", "then"), [(first, then) for first in APIS for then in APIS if first != then], ids="-".join
)
async def test_r06_a_run_that_switches_its_api_takes_a_malformed_call_along(
    harness: Harness, first: str, then: str
) -> None:
    """The first provider's key expires after its one reply; the next model goes on in the middle of the exchange."""
    gone = Response.of({"error": {"message": "key expired"}}, 401)
    begun = [said(first, Call("write", BROKEN), label="calls", stream=True), gone]
    agent = spec(first, write, fallback_models=("other:claude-sonnet-4-5",))
    played = RecordedConversation([said(then, text="I see.", stream=True)], RULES[then])
    async with ModelServer(begun) as one, ModelServer(played) as two, loopback_client() as http:
        providers = {
            "served": HttpModel(http, DIALECTS[first](), one.base_url, KEY),
            "other": HttpModel(http, DIALECTS[then](), two.base_url, KEY),
        }
        async with harness.worker(agent, providers=providers):
            run = await harness.start(PROMPT)
            result = await run.result()
            invalid = await event_of(run, "tool_invalid")
    assert (result.text, ran, played.refused) == ("I see.", [], [])
    assert invalid.data["raw"] == BROKEN
    assert calls_in(then, two.requests[0].json) == {"call_1": {}}
    ((call_id, told),) = results_in(then, two.requests[0].json)
    assert call_id == "call_1"
    assert "the arguments are not valid JSON" in told


# -- a reply that was cut off ------------------------------------------------------------------------------------

WHOLE = Call("lookup", '{"q":"a"}', "call_0")
LIMIT = 16
CUT_OFF = {
    "A": ([Call("build", '{"steps":["make clean","make test"')], "length", 8),
    "B": ([Call("write", '{"path":"README.md","content":"# T\\nPart 1')], "calls", LIMIT),
    "C": ([WHOLE, Call("build", '{"steps":["make clean","make test"')], "length", 8),
    "D": ([WHOLE], "length", 8),
    "E": ([Call("clean", '{"dir":"/data","only":["tmp"')], "length", 8),
}


@EACH_API
@BOTH_WAYS
@pytest.mark.parametrize("case", CUT_OFF)
async def test_r08_nothing_of_a_reply_that_was_cut_off_runs(
    harness: Harness, api: str, stream: bool, case: str
) -> None:
    calls, label, output = CUT_OFF[case]
    asked = said(api, *calls, label=label, output=output, stream=stream)
    agent = spec(api, lookup, write, build, clean, settings=ModelSettings(max_output_tokens=LIMIT))
    async with serving(harness, api, agent, asked, said(api, text="Sorry.", stream=stream)) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
        invalid = [event for event in await events_of(run) if event.type == "tool_invalid"]
    assert (result.text, ran) == ("Sorry.", [])
    told = results_in(api, server.requests[1].json)
    assert [call_id for call_id, _ in told] == [call.id for call in calls]
    assert all("was cut off" in text and "send a smaller call" in text for _, text in told)
    assert [event.data["reason"] for event in invalid] == ["truncated_reply"] * len(calls)
    assert [record.attempts for record in result.tool_results] == [0] * len(calls)


@EACH_API
async def test_r08_a_model_that_is_always_cut_off_is_not_asked_forever(harness: Harness, api: str) -> None:
    asked = [said(api, Call("lookup", '{"q":"a"}', f"call_{n}"), label="length") for n in range(4)]
    async with serving(harness, api, spec(api, lookup, max_rounds=3), *asked):
        error, partial = await failure_of(await harness.start(PROMPT))
    assert (error.type, partial.rounds, ran) == ("MaxRoundsExceeded", 3, [])


# -- arguments of other types than were published ----------------------------------------------------------------


@tool(side_effect="write")
def act(dry_run: bool, amount: int, ratio: float) -> str:
    """Act."""
    ran.append((dry_run, amount, ratio))
    return "acted"


@EACH_API
@BOTH_WAYS
async def test_r10_what_was_published_is_enforced(harness: Harness, api: str, stream: bool) -> None:
    texts = [
        '{"dry_run":"NO","amount":true,"ratio":"NaN"}',
        '{"dry_run":1,"amount":"5","ratio":"1e400"}',
        '{"dry_run":false,"amount":5,"ratio":0.5,"force":true}',
        '{"dry_run":false,"amount":5.0,"ratio":1}',
    ]
    calls = [Call("act", text, f"call_{n}") for n, text in enumerate(texts)]
    replies = [said(api, *calls, label="calls", stream=stream), said(api, text="Done.", stream=stream)]
    async with serving(harness, api, spec(api, act), *replies) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
        invalid = [event for event in await events_of(run) if event.type == "tool_invalid"]
    # 1.0 is an integer, as JSON Schema says, and reaches the tool as one.
    assert repr(ran) == "[(False, 5, 1)]" or repr(ran) == "[(False, 5, 1.0)]"
    assert [record.ok for record in result.tool_results] == [False, False, False, True]
    published: Any = (server.requests[0].json or {})["tools"]
    assert '"additionalProperties": false' in json.dumps(published)
    told = [text for _, text in results_in(api, server.requests[1].json)]
    for text in told[:2]:
        assert all(f"/{field}: " in text for field in ("dry_run", "amount", "ratio"))
    assert "/force: unknown field" in told[2]
    for event, lines in zip(invalid, (3, 3, 1), strict=True):
        assert len(str(event.data["issues"]).split("; /")) == lines


# -- a failure after a success status ----------------------------------------------------------------------------


def broken_off(api: str, error: str | None) -> Response:
    """The beginning of a stream that has told its input, and then an error or nothing at all."""
    told: JsonValue = None if error is None else {"type": error, "message": "Overloaded"}
    if api == "chat":
        usage: JsonValue = {"prompt_tokens": 9, "completion_tokens": 0}
        events = [chat_chunks.chunk({"content": "Hel"}, usage=usage)]
        return Streamed.of_events(*events, *([] if error is None else [{"error": told}]))
    failure: list[JsonValue] = [] if error is None else [{"type": "error", "error": told}]
    if api == "responses":
        return Streamed.of_events(*asking_responses.text_events("Hel"), *failure)
    return Streamed.of_events(
        {
            "type": "message_start",
            "message": asking_messages.reply(stop_reason=None, usage={"input_tokens": 9, "output_tokens": 0}),
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        asking_messages.delta(0, "text_delta", text="Hel"),
        *failure,
    )


@EACH_API
@pytest.mark.parametrize("error", ["overloaded_error", None])
async def test_r16_a_stream_that_fails_is_no_answer_and_leaves_nothing_behind(
    harness: Harness, api: str, error: str | None
) -> None:
    replies = [broken_off(api, error), said(api, text="Hello.", stream=True)]
    async with serving(harness, api, spec(api), *replies) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
        assert await model_attempts(harness, run) == [2]
        messages = (await transcript_of(run)).messages
    assert [message.text for message in messages] == ["Go.", "Hello."]
    assert server.requests[0].json == server.requests[1].json
    # What the failed attempt was billed, where its API had told so, counts, and counts once.
    billed = 0 if api == "responses" else 9
    assert result.usage == Usage(input_tokens=10 + billed, output_tokens=8)


@EACH_API
async def test_r16_a_request_that_is_refused_within_a_stream_is_not_sent_again(harness: Harness, api: str) -> None:
    async with serving(harness, api, spec(api), broken_off(api, "invalid_request_error")):
        run = await harness.start(PROMPT)
        error, partial = await failure_of(run)
        assert await model_attempts(harness, run) == [1]
        messages = (await transcript_of(run)).messages
    assert error.type == "ModelBadRequest"
    assert [message.text for message in messages] == ["Go."]
    assert partial.usage.input_tokens == (0 if api == "responses" else 9)


# -- framing by the rules of event streams -----------------------------------------------------------------------


def written(api: str, text: str) -> list[bytes]:
    """The events in which an API streams a text, each as it stands on the wire, nothing escaped that need not be."""
    if api == "chat":
        head: JsonValue = {"choices": [{"index": 0, "delta": {"content": text}}]}
        return [_event(head), _event(chat_chunks.chunk({}, "stop")), b"data: [DONE]\n\n"]
    if api == "responses":
        return [_event(event) for event in (*asking_responses.text_events(text), _ended(text))]
    return [_event(event) for event in asking_messages.events(asking_messages.reply(asking_messages.text(text)))]


def _ended(text: str) -> JsonValue:
    return asking_responses.ending(asking_responses.message(text))


def _event(event: JsonValue) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False).replace("\\u001c", "\x1c").encode() + b"\n\n"


async def read(api: str, *pieces: bytes, cut: bool = False) -> str:
    """The text of a stream that comes in these pieces."""
    async with ModelServer([Streamed(headers=EVENT_STREAM, pieces=pieces, cut=cut)]) as server:
        return await _asked(api, server)


async def _asked(api: str, server: ModelServer) -> str:
    request = CompletionRequest("m", "Be brief.", (Message(role="user", text="Hello"),), ())
    async with loopback_client() as http:
        return (await HttpModel(http, DIALECTS[api](), server.base_url, KEY).complete(request)).text


@EACH_API
@pytest.mark.parametrize("between", ["\u2028", "\x85", "\x1c", "\U0001f600"])
@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
async def test_r37_only_the_line_ends_of_the_standard_end_a_line(api: str, between: str, size: int) -> None:
    body = b": keepalive\n\n".join([b"", *written(api, f"a{between}b")])
    assert await read(api, *_pieces(body, size)) == f"a{between}b"


def _pieces(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


@EACH_API
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 5, 100_000])
async def test_r37_every_line_end_is_one_and_data_lines_are_joined(api: str, end: bytes, size: int) -> None:
    first, *rest = written(api, "a\U0001f600b")
    assert first.startswith(b'data: {"')
    # Without the blank after the colon, and in two lines.
    two_lines = b"data:{\ndata:" + first.removeprefix(b"data: {")
    body = (b": keepalive\n\n" + two_lines + b"".join(rest)).replace(b"\n", end)
    assert await read(api, *_pieces(body, size)) == "a\U0001f600b"


@EACH_API
async def test_r37_an_unfinished_last_event_is_a_broken_stream(api: str) -> None:
    *events, last = written(api, "Hello")
    for unfinished in (last[:-1], last[:-2], last[: len(last) // 2]):
        # Of a chat's stream the end may be told before its marker: what is cut off there is that event.
        before = events[:1] if api == "chat" else events
        cut = events[1][:-1] if api == "chat" else unfinished
        with pytest.raises(ModelFailure) as caught:
            await read(api, *before, cut)
        assert (caught.value.type, caught.value.retryable) == ("ModelUnavailable", True)


@EACH_API
async def test_r37_control_characters_that_nobody_escaped_are_text_in_whole_replies_and_errors_too(api: str) -> None:
    whole = said(api, text="a-b").body.replace(b"a-b", b"a\x1c\x0bb")
    async with ModelServer([Response(200, {"content-type": "application/json"}, whole)]) as server:
        assert (await _asked(api, server)) == "a\x1c\x0bb"
    error = b'{"error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"too\x1clong"}}'
    async with ModelServer([Response(400, {"content-type": "application/json"}, error)]) as server:
        with pytest.raises(ModelFailure) as caught:
            await _asked(api, server)
    assert caught.value.type == "ContextWindowExceeded"
    assert "code" not in str(caught.value)


# -- what watchers see of a call that is made again --------------------------------------------------------------


def begun_call(api: str) -> list[JsonValue]:
    """Half a tool call in a stream, after a text."""
    half = '{"berth": "No'
    if api == "chat":
        return [chat_chunks.chunk(chat_chunks.call_piece(0, "call_1", "book", half))]
    if api == "responses":
        item: JsonValue = {"type": "function_call", "call_id": "call_1", "name": "book", "arguments": ""}
        return [
            {"type": "response.output_item.added", "output_index": 1, "item": item},
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": half},
        ]
    return [
        {"type": "content_block_start", "index": 1, "content_block": asking_messages.tool_use("call_1", "book")},
        asking_messages.delta(1, "input_json_delta", partial_json=half),
    ]


@EACH_API
@pytest.mark.parametrize("half_a_call", [False, True])
async def test_r39_all_viewers_end_with_the_recorded_text(harness: Harness, api: str, half_a_call: bool) -> None:
    @tool(side_effect="write", approval="always")
    def book(berth: str) -> str:
        """Book a berth."""
        ran.append(berth)
        return berth

    relay = Relay()
    begun = written(api, "The harbour op")
    # Up to the text, and then the connection drops.
    shown = begun[: next(n for n, event in enumerate(begun, 1) if b"ur op" in event or b"e harbour" in event)]
    half = [_event(event) for event in begun_call(api)] if half_a_call else []
    replies = [
        Streamed(headers=EVENT_STREAM, pieces=(*shown, *half), cut=True),
        said(api, text="The harbour opens at nine.", stream=True),
    ]
    played = RecordedConversation(replies, RULES[api])
    async with ModelServer(played) as server, loopback_client() as http:
        model = HttpModel(http, DIALECTS[api](), server.base_url, KEY)
        catalog = Catalog([spec(api, book)], sinks=[Callback(relay.take)])
        async with agent_worker(harness.client, harness.task_queue, catalog, {"served": model}):
            run = await harness.start(PROMPT)
            result = await run.result()
            pending = (await state_of(run)).pending_approvals
    assert result.text == "The harbour opens at nine."
    first = relay.events[0]
    second = [event for event in relay.events if event.attempt == 2]
    always, late, back = Viewer.of(first), Viewer.of(first), Viewer.of(first)
    always.show(relay.events)
    late.show(second[-1:])
    back.show(relay.events[:2])
    back.show([event for event in relay.events if (event.attempt, event.sequence) > back.view.position])
    for viewer in (always, late, back):
        assert (viewer.view.text, viewer.view.complete, viewer.view.ready) == (result.text, True, ())
    assert {event.key for event in relay.events} == {first.key}
    assert {event.attempt for event in relay.events} == {1, 2}
    types = [event.type for event in relay.events if event.attempt == 1]
    assert ("tool_call_building" in types) == half_a_call
    assert "tool_call_ready" not in {event.type for event in relay.events}
    assert (ran, pending) == ([], ())


# -- calls and their results stay together -----------------------------------------------------------------------


@EACH_API
async def test_r40_a_call_that_a_cancellation_left_open_is_answered_in_the_next_run(harness: Harness, api: str) -> None:
    started, hold = asyncio.Event(), asyncio.Event()

    @tool(side_effect="read")
    async def wait(q: str) -> str:
        """Wait."""
        started.set()
        await hold.wait()
        return q

    replies = [said(api, Call("wait", '{"q":"c3"}', "c3"), label="calls"), said(api, text="Done.")]
    async with serving(harness, api, spec(api, wait), *replies) as server:
        run = await harness.start(PROMPT)
        await started.wait()
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await run.result()
        assert isinstance(ended.value.cause, CancelledError)
        so_far = [message.model_dump(mode="json") for message in (await transcript_of(run)).messages]
        again = await harness.start({"agent": "tester", "messages": so_far, "prompt": "And now?"})
        assert (await again.result()).text == "Done."
    ((call_id, told),) = results_in(api, server.requests[1].json)
    assert call_id == "c3"
    assert "cancelled" in told


# -- schemas that refer to something outside ---------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[tuple[int, list[str]]]:
    """A server's port, and the paths that it was asked for."""
    paths: list[str] = []

    class Listening(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Listening)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"properties": {"a": {"$ref": "http://127.0.0.1:PORT/x"}}}, "http://127.0.0.1:PORT/x"),
        ({"properties": {"a": {"$ref": "file:///etc/hostname"}}}, "file:///etc/hostname"),
        ({"$schema": "http://127.0.0.1:PORT/s"}, "http://127.0.0.1:PORT/s"),
        ({"$id": "http://127.0.0.1:PORT/", "properties": {"a": {"$ref": "x"}}}, "http://127.0.0.1:PORT/"),
        ({"properties": {"a": {"$dynamicRef": "http://127.0.0.1:PORT/d"}}}, "http://127.0.0.1:PORT/d"),
    ],
)
async def test_r44_the_schema_of_an_answer_refers_to_nothing_outside(
    harness: Harness, listener: tuple[int, list[str]], template: dict[str, JsonValue], named: str
) -> None:
    port, paths = listener
    schema = json.loads(json.dumps({"type": "object", **template}).replace("PORT", str(port)))
    named = named.replace("PORT", str(port))
    with pytest.raises(CatalogError) as caught:
        Catalog([spec("chat", output_schema=schema)])
    assert "output_schema" in str(caught.value)
    assert named in str(caught.value)
    async with serving(harness, "chat", spec("chat")) as server:
        error, _ = await failure_of(await harness.start({**PROMPT, "options": {"output_schema": schema}}))
        assert server.requests == []
    assert error.type == "InvalidInput"
    assert named in error.message
    assert paths == []


async def test_r44_the_schema_of_an_answer_may_refer_to_its_own_parts(harness: Harness) -> None:
    schema: JsonValue = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/small"}},
        "required": ["a"],
        "$defs": {"small": {"type": "integer", "maximum": 9}},
    }
    replies = [said("chat", text='{"a": 10}'), said("chat", text='{"a": 1}')]
    async with serving(harness, "chat", spec("chat", output_schema=schema), *replies) as server:
        result = await (await harness.start(PROMPT)).result()
    assert result.output == {"a": 1}
    assert "/a" in str(items_of("chat", server.requests[1].json)[-1])


# -- an address that is not there --------------------------------------------------------------------------------


@EACH_API
async def test_r49_a_page_that_is_not_found_ends_the_run_after_one_request(harness: Harness, api: str) -> None:
    page = Response(404, {"content-type": "text/html"}, f"<html><h1>404</h1>{KEY}</html>".encode())
    async with serving(harness, api, spec(api), page) as server:
        run = await harness.start(PROMPT)
        error, _ = await failure_of(run)
        assert await model_attempts(harness, run) == [1]
    assert error.type == "ModelBadRequest"
    assert server.base_url in error.message
    assert KEY not in error.message


# -- R-x10: state that changes its types on its way --------------------------------------------------------------------

ODD = {"s": {1, 2}, "t": (1, 2), "b": b"\x01", 1: "one"}


async def test_rx10_what_would_change_its_type_is_refused_at_the_start_and_named(harness: Harness) -> None:
    async with harness.worker(scripted_agent()):
        error, _ = await failure_of(await harness.start({**PROMPT, "context": {"metadata": ODD}}))
    assert error.type == "InvalidInput"
    assert "context.metadata.s" in error.message
    assert "context.metadata.t" in error.message


async def test_rx10_what_a_tool_gives_is_made_into_json_once_before_it_is_recorded(harness: Harness) -> None:
    @tool(side_effect="read", description="Give odd things.")
    def odd() -> dict[Any, Any]:
        return ODD

    replies = [said("chat", Call("odd", "{}"), label="calls"), said("chat", text="Done.")]
    async with serving(harness, "chat", spec("chat", odd), *replies) as server:
        run = await harness.start(PROMPT)
        result = await run.result()
    ((_, told),) = results_in("chat", server.requests[1].json)
    assert json.loads(told) == {"s": [1, 2], "t": [1, 2], "b": "\x01", "1": "one"}
    assert result.tool_results[0].text == told


def annotations(record: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[str, object]]:
    """Every type that stands in the fields of a record and of the records in them."""
    if record in seen:
        return
    seen.add(record)
    for name, field in record.model_fields.items():
        waiting: list[object] = [field.annotation]
        while waiting:
            found = waiting.pop()
            if isinstance(found, type) and issubclass(found, BaseModel):
                yield from annotations(found, seen)
            elif found is not JsonValue:
                yield f"{record.__name__}.{name}", found
                waiting += [part for part in get_args(found) if not isinstance(part, str | int)]


@pytest.mark.parametrize(
    "record", [AgentRunInput, AgentRunResult, AgentRunState, Carry, ModelRequest, ModelReply], ids=lambda r: r.__name__
)
def test_rx10_all_state_is_typed(record: type[BaseModel]) -> None:
    untyped = (Any, object, dict, list, tuple, set, frozenset, bytes)
    found = list(annotations(record, set()))
    assert found
    assert [place for place, annotation in found if annotation in untyped or "set[" in str(annotation)] == []
