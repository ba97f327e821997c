import pytest
from pydantic import JsonValue

from activities.arguments import UnreadableArguments, propose, read_arguments
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Completion, ModelErrorType, ModelFailure
from contracts.messages import InvalidToolCall
from contracts.tools import ToolContract
from tests.providers.asking import KEY, answered, asked, failed
from tests.providers.model_server import ModelServer, Response, chat_reply
from tests.support.loopback import loopback_client

LOOK = ToolContract(name="look", description="Looks.", input_schema={"type": "object"}, side_effect="read")


def error(message: str = "m", **more: JsonValue) -> JsonValue:
    return {"error": {"message": message, **more}}


@pytest.mark.parametrize(
    ("body", "type", "retryable"),
    [
        (b"", "ModelUnavailable", True),
        (b" \n", "ModelUnavailable", True),
        (b'{"choices":[{"mess', "ModelUnavailable", True),
        (b"<!doctype html><p>Welcome", "ModelBadRequest", False),
        (b"OK", "ModelBadRequest", False),
        (b"[" * 100_000, "ModelBadRequest", False),
        (b"[]", "ModelBadRequest", False),
        (b"{}", "ModelUnavailable", True),
        (b'{"choices":null}', "ModelUnavailable", True),
        (b'{"choices":[]}', "ModelUnavailable", True),
        (b'{"choices":[null]}', "ModelUnavailable", True),
        (b'{"error":"model is loading"}', "ModelUnavailable", True),
        (b'{"object":"error","message":"busy","code":"1300"}', "ModelUnavailable", True),
        (error(type="server_error"), "ModelUnavailable", True),
        (error(type="overloaded_error"), "ModelUnavailable", True),
        (error(code=502), "ModelUnavailable", True),
        (error(code=400), "ModelBadRequest", False),
        (error(type="invalid_request_error"), "ModelBadRequest", False),
        (error(type="authentication_error"), "ModelAuthentication", False),
        (error(code="insufficient_quota"), "ModelUnavailable", False),
        (error(code="context_length_exceeded", type="invalid_request_error"), "ContextWindowExceeded", False),
        (error(code="content_filter", status=400), "ModelRefused", False),
        ({"choices": [{"message": {"content": "Hel"}, "error": {"code": 502}}]}, "ModelUnavailable", True),
        ({"choices": [{"message": {"content": "Hel"}, "finish_reason": "error"}]}, "ModelUnavailable", True),
        ({"choices": [{"message": {"refusal": "I cannot."}}]}, "ModelRefused", False),
        ({"choices": [{"message": {"content": [{"type": "refusal", "refusal": "No."}]}}]}, "ModelRefused", False),
        ({"choices": [{"finish_reason": "content_filter"}]}, "ModelRefused", False),
    ],
)
async def test_a_200_without_a_reply_is_a_failure(
    body: bytes | JsonValue, type: ModelErrorType, retryable: bool
) -> None:
    failure = await failed(Response(200, {}, body) if isinstance(body, bytes) else Response.of(body))
    assert (failure.type, failure.retryable) == (type, retryable)


def with_usage(tokens: str) -> bytes:
    return chat_reply({"content": "Hi"}, usage={"prompt_tokens": "N"}).body.replace(b'"N"', tokens.encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":' + b"[" * 100_000,
        b'{"choices":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
        b'{"error":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
        with_usage("9" * 5_000),
    ],
)
async def test_a_whole_reply_that_this_machine_cannot_read_is_not_asked_for_again(body: bytes) -> None:
    failure = await failed(Response(200, {}, body))
    assert (failure.type, failure.retryable) == ("ModelBehaviour", False)


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("depth", [300, 600, 900, 950, 5_000])
async def test_an_error_nested_deeply_is_still_a_failure(status: int, depth: int) -> None:
    body = b'{"error":' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)
    assert (await failed(Response(status, {}, body))).type in ("ModelUnavailable", "ModelBadRequest", "ModelBehaviour")


async def with_nested_arguments(depth: int) -> Completion | ModelFailure:
    call: JsonValue = {"function": {"name": "look", "arguments": "HERE"}}
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    body = chat_reply({"content": None, "tool_calls": [call]}).body.replace(b'"HERE"', nested)
    try:
        return await answered(Response(200, {}, body))
    except ModelFailure as failure:
        return failure


@pytest.mark.parametrize("depth", [65, 300, 600, 800])
async def test_arguments_sent_as_a_deep_object_are_told_to_the_model(depth: int) -> None:
    reply = await with_nested_arguments(depth)
    assert isinstance(reply, Completion)
    verdict = propose(reply.calls[0], "call_1", {"look": LOOK}, truncated=False)
    assert isinstance(verdict, InvalidToolCall)
    assert "at most 64 levels" in verdict.issues[0].message


@pytest.mark.parametrize("depth", [*range(860, 1_000, 4), 5_000, 100_000])
async def test_arguments_too_deep_to_be_read_are_the_models_fault(depth: int) -> None:
    reply = await with_nested_arguments(depth)
    assert isinstance(reply, Completion) or (reply.type, reply.retryable) == ("ModelBehaviour", False)
    assert isinstance(reply, ModelFailure) or depth < 1_000


@pytest.mark.parametrize("number", ["NaN", "1e400", "-Infinity"])
async def test_a_number_that_json_does_not_have_is_not_made_into_a_text(number: str) -> None:
    call: JsonValue = {"function": {"name": "look", "arguments": {"x": "N"}}}
    body = chat_reply({"tool_calls": [call]}).body.replace(b'"N"', number.encode())
    (raw,) = (await answered(Response(200, {}, body))).calls
    with pytest.raises(UnreadableArguments, match="JSON has no"):
        read_arguments(raw.arguments)


@pytest.mark.parametrize("finish_reason", [[], {}, 5, True])
async def test_a_finish_reason_that_is_no_word_is_none(finish_reason: JsonValue) -> None:
    message: JsonValue = {"choices": [{"message": {"content": "Hi"}, "finish_reason": finish_reason}]}
    assert (await answered(Response.of(message))).finish_reason is None


async def test_an_error_cannot_steer_a_terminal() -> None:
    shown = str(await failed(Response.of(error("red \x1b[31m\x07 \u202eturned\u200b\r\nnext"), 400)))
    assert shown.endswith("400: red \\x1b[31m\\x07 \\u202eturned\\u200b next")


async def test_an_error_beside_choices_that_is_null_is_none() -> None:
    assert (await answered(chat_reply({"content": "Hi"}, error=None))).text == "Hi"


@pytest.mark.parametrize(
    ("status", "body", "type", "retryable"),
    [
        (301, {}, "ModelBadRequest", False),
        (400, error("Unknown parameter"), "ModelBadRequest", False),
        (400, error("This model's maximum context length is 8192 tokens."), "ContextWindowExceeded", False),
        (400, error(code="content_filter", innererror={"code": "ResponsibleAIPolicyViolation"}), "ModelRefused", False),
        (401, {"detail": "Invalid API Key"}, "ModelAuthentication", False),
        (403, error(), "ModelAuthentication", False),
        (404, {"detail": [{"loc": ["body"]}]}, "ModelBadRequest", False),
        (405, "text", "ModelBadRequest", False),
        (408, {}, "ModelUnavailable", True),
        (409, {}, "ModelUnavailable", True),
        (413, {}, "ModelBadRequest", False),
        (418, {}, "ModelBadRequest", False),
        (422, {}, "ModelBadRequest", False),
        (425, {}, "ModelUnavailable", True),
        (429, error(code="rate_limit_exceeded"), "ModelUnavailable", True),
        (429, error(type="insufficient_quota"), "ModelUnavailable", False),
        (429, error(code="billing_hard_limit_reached"), "ModelUnavailable", False),
        (500, {}, "ModelUnavailable", True),
        (503, [], "ModelUnavailable", True),
        (529, error(type="overloaded_error"), "ModelUnavailable", True),
    ],
)
async def test_a_status_is_classified(status: int, body: JsonValue, type: ModelErrorType, retryable: bool) -> None:
    failure = await failed(Response.of(body, status))
    assert (failure.type, failure.retryable) == (type, retryable)
    assert str(status) in str(failure)


async def test_a_refused_key_is_named_by_its_setting_and_never_shown() -> None:
    refused = Response.of(
        error(f"Incorrect API key provided: {KEY}. " + "x" * 400 + KEY * 20, code="invalid_api_key"), 401
    )
    failure = await failed(refused)
    assert failure.type == "ModelAuthentication"
    assert "OPENAI_API_KEY" in str(failure)
    assert "sk-TEST" not in str(failure)


async def test_a_page_that_is_not_found_names_the_address() -> None:
    page = (404, {"content-type": "text/html"}, "<h1>404</h1>")
    async with ModelServer([page]) as server, loopback_client() as http:
        with pytest.raises(ModelFailure, match=f"{server.base_url}/chat/completions") as caught:
            await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked())
    assert (caught.value.type, caught.value.retryable) == ("ModelBadRequest", False)


@pytest.mark.parametrize("size", [5_000_000, 20_000_000])
async def test_a_huge_error_page_keeps_its_class_and_loses_its_length(size: int) -> None:
    failure = await failed((500, {"retry-after": "2"}, b"E" * size))
    assert (failure.type, failure.retryable, failure.retry_after) == ("ModelUnavailable", True, 2.0)


async def test_a_reply_over_the_limit_is_not_read_to_its_end() -> None:
    failure = await failed((200, {}, b" " * 20_000_000))
    assert (failure.type, failure.retryable) == ("ModelBehaviour", False)


async def test_a_connection_cut_in_the_middle_of_a_reply_is_retryable() -> None:
    failure = await failed((200, {"content-length": "1000", "connection": "close"}, '{"choices":'))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)


async def test_an_undecodable_body_is_retryable() -> None:
    failure = await failed((200, {"content-encoding": "gzip"}, "no gzip"))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", True)


async def test_a_server_that_is_not_there_is_retryable() -> None:
    async with ModelServer([]) as server:
        pass
    async with loopback_client() as http:
        with pytest.raises(ModelFailure, match="ConnectError") as caught:
            await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked())
    assert (caught.value.type, caught.value.retryable) == ("ModelUnavailable", True)
