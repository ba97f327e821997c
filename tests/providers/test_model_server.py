import asyncio

import pytest
from pydantic import JsonValue

from tests.providers.legality import messages_illegality, request_illegality
from tests.providers.model_server import ModelServer, RecordedConversation, Response, chat_reply
from tests.support.loopback import loopback_client

USER: JsonValue = {"role": "user", "content": "Hello"}


def calling(*ids: str, arguments: JsonValue = "{}") -> JsonValue:
    function: JsonValue = {"name": "lookup", "arguments": arguments}
    calls: list[JsonValue] = [{"id": each, "type": "function", "function": function} for each in ids]
    return {"role": "assistant", "tool_calls": calls}


def result(id: str) -> JsonValue:
    return {"role": "tool", "tool_call_id": id, "content": ""}


def test_rounds_with_every_call_answered_are_legal() -> None:
    said: JsonValue = {"role": "assistant", "content": "Hi"}
    assert (
        messages_illegality([USER, calling("a", "b"), result("a"), result("b"), said, USER, calling("c"), result("c")])
        is None
    )


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([USER, calling("a")], "'a' is not answered"),
        ([USER, calling("a"), USER], "comes before the answer to 'a'"),
        ([USER, calling("a", "b"), result("b"), result("a")], "answers 'b'"),
        ([USER, calling("a"), result("a"), result("a")], "answers 'a'"),
        ([USER, result("a")], "answers 'a'"),
        ([USER, calling("a"), result("a"), calling("a"), result("a")], "not unique"),
        ([USER, calling("a", "a"), result("a"), result("a")], "not unique"),
        ([USER, calling("")], "has no id"),
        ([USER, calling()], "there but empty"),
        ([USER, {"role": "assistant", "content": None}], "is empty"),
        ([USER, {"role": "assistant", "content": ""}], "is empty"),
        ([USER, calling("a", arguments="")], "no JSON object"),
        ([USER, calling("a", arguments="[]")], "no JSON object"),
        ([USER, calling("a", arguments={})], "no JSON object"),
        ([{"role": "robot", "content": "x"}], "no legal role"),
    ],
)
def test_illegal_messages_are_told_apart(messages: list[JsonValue], reason: str) -> None:
    assert reason in (messages_illegality(messages) or "")


def test_a_request_needs_a_model_and_messages_and_no_empty_tools() -> None:
    assert request_illegality({"model": "m", "messages": [USER]}) is None
    assert request_illegality({"messages": [USER]}) == "model is missing"
    assert request_illegality({"model": "m", "messages": []}) == "messages is missing or empty"
    assert request_illegality({"model": "m", "messages": [USER], "tools": []}) == "tools is there but empty"
    bad: JsonValue = [{"type": "function", "function": {"name": "a b"}}]
    assert request_illegality({"model": "m", "messages": [USER], "tools": bad}) == "a tool is named 'a b'"


async def test_a_recorded_conversation_answers_an_illegal_request_with_400_and_waits_for_a_legal_one() -> None:
    played = RecordedConversation([chat_reply({"role": "assistant", "content": "Hi"})])
    async with ModelServer(played) as server, loopback_client(base_url=server.base_url) as http:
        illegal = await http.post("/chat/completions", json={"model": "m", "messages": [USER, calling("a")]})
        legal = await http.post("/chat/completions", json={"model": "m", "messages": [USER]})
        late = await http.post("/chat/completions", json={"model": "m", "messages": [USER]})
    assert [illegal.status_code, legal.status_code, late.status_code] == [400, 200, 400]
    assert played.refused == ["'a' is not answered", "the recorded conversation is over"]


async def two_requests_for_one_answer() -> None:
    async with ModelServer([Response()]) as server, loopback_client(base_url=server.base_url) as http:
        assert (await http.post("/x", json={})).status_code == 200
        assert (await http.post("/x", json={})).status_code == 400


async def test_a_fault_of_the_test_itself_is_raised_when_the_server_is_left() -> None:
    with pytest.raises(AssertionError, match="more requests than the 1 canned"):
        await two_requests_for_one_answer()


async def test_requests_are_answered_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def answer(_: dict[str, JsonValue]) -> Response:
        await both.wait()
        return Response.of({})

    async with asyncio.timeout(10), ModelServer(answer) as server, loopback_client(base_url=server.base_url) as http:
        replies = await asyncio.gather(http.post("/x", json={}), http.post("/x", json={}))
    assert [reply.status_code for reply in replies] == [200, 200]
