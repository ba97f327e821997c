"""A provider that repeats whatever it was sent: neither the key nor a header's value stays anywhere but in requests."""

import json
import logging
from collections.abc import Awaitable, Callable

import pytest
from pydantic import JsonValue

from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import CompletionRequest, Delta
from activities.tooling import tool
from contracts.messages import Message
from runtime.dev_server import DevServer
from tests.providers import asking_messages, asking_responses, chat_chunks
from tests.providers.model_server import ModelServer, Received, Response, Streamed, chat_reply
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, failure_of, histories
from tests.support.loopback import loopback_client
from tests.support.providers import PATHS, providers_in
from tests.support.tool_worker import texts_in, texts_in_history
from tests.support.waiting import eventually

KEY = "sk-TEST-TOKEN-9-do-not-leak"
# What a gateway before the provider wants. With a blank, and what JSON escapes.
GATE = 'gate "TEST/TOKEN" 8'
ENVIRONMENT = {"ACME_API_KEY": KEY, "ACME_HEADERS": "X-Gate=GATE_KEY", "GATE_KEY": GATE}
ROUNDS = 12


@tool(side_effect="read")
def look(said: str) -> str:
    """Look."""
    return f"heard {len(said)} characters"


AGENT = scripted_agent(look).model_copy(update={"model": "acme:any"})


def secrets_of(request: Received) -> str:
    """What a request held in its headers and nobody should say."""
    return f"{request.headers.get('x-api-key') or request.headers['authorization']} {request.headers['x-gate']}"


def leaks(texts: list[str]) -> list[str]:
    """The texts with more of a secret than could be there by chance."""
    return [text for text in texts if "TEST-TOKEN" in text or "TEST/TOKEN" in text or r"TEST\/TOKEN" in text]


def turn(api: str, echo: str, number: int, last: bool) -> Response:
    """A streamed reply that holds the echo in all its parts, and calls `look` unless it is the last."""
    arguments = json.dumps({"said": echo})
    if api == "messages":
        use = asking_messages.tool_use(f"toolu_{number}{echo}", "look", said=echo)
        blocks = [asking_messages.thinking(echo, echo), asking_messages.text(echo), *([] if last else [use])]
        return asking_messages.streamed(asking_messages.reply(*blocks, stop_reason="end_turn" if last else "tool_use"))
    if api == "responses":
        call = asking_responses.called(arguments, f"call_{number}{echo}", name="look")
        items = [asking_responses.thought(echo, echo), asking_responses.message(echo), *([] if last else [call])]
        halves = echo[: len(echo) // 2], echo[len(echo) // 2 :]
        return Streamed.of_events(*asking_responses.text_events(*halves), asking_responses.ending(*items))
    call = {"id": f"call_{number}{echo}", "type": "function", "function": {"name": "look", "arguments": arguments}}
    message: dict[str, JsonValue] = {"role": "assistant", "content": echo, "reasoning_content": echo}
    if not last:
        message["tool_calls"] = [call]
    return chat_chunks.streamed(chat_reply(message, "stop" if last else "tool_calls"))


def broken_off(api: str, echo: str) -> Response:
    """An error inside a stream, a passing one, that repeats what it was sent."""
    error: JsonValue = {"type": "overloaded_error", "code": "server_error", "message": echo}
    return Streamed.of_events({"error": error} if api == "chat" else {"type": "error", "error": error})


class Echo:
    """Twelve rounds and an answer, each repeating the request's secrets; after the second a failure, a status once and
    once inside a stream. `wait` is awaited before the first reply."""

    def __init__(self, api: str, wait: Callable[[], Awaitable[None]]) -> None:
        self._api = api
        self._wait = wait
        self._failures = [
            lambda echo: Response(429, {"retry-after-ms": "1", "x-echo": "y"}, json.dumps({"error": echo}).encode()),
            lambda echo: broken_off(api, echo),
        ]
        self.server = ModelServer(self._answer)
        self.replies = 0

    async def _answer(self, body: dict[str, JsonValue]) -> Response:
        echo = secrets_of(self.server.requests[-1])
        if self.replies == 0:
            await self._wait()
        if self.replies == 2 and self._failures:
            return self._failures.pop(0)(echo)
        self.replies += 1
        # The tools that it was shown are repeated too, as some do to show what they understood.
        said = f"{echo} {json.dumps(body.get('tools'))}"
        return turn(self._api, said, self.replies, last=self.replies > ROUNDS)


@pytest.mark.parametrize("api", PATHS)
async def test_r46_two_turns_a_failure_a_heartbeat_and_a_continue_as_new(
    harness: Harness, impatient: DevServer, caplog: pytest.LogCaptureFixture, api: str
) -> None:
    caplog.set_level(logging.DEBUG)
    corner, seen = Harness(impatient.client), list[str]()

    async def beaten() -> None:
        """The server has heard of the call that is being made."""

        async def ask() -> list[str] | None:
            description = (await corner.client.get_workflow_handle("echo-" + api).describe()).raw_description
            beats = any(pending.HasField("last_heartbeat_time") for pending in description.pending_activities)
            return list(texts_in(description)) if beats else None

        seen.extend(await eventually(ask))

    echo = Echo(api, beaten)
    async with echo.server as server, loopback_client() as http:
        environment = {**ENVIRONMENT, "ACME_BASE_URL": server.base_url, "ACME_API": api}
        async with corner.worker(AGENT, providers=providers_in(environment, http, AGENT)):
            run = await corner.start(PROMPT, id="echo-" + api)
            result = await run.result()
        seen += texts_in((await run.describe()).raw_description)
    seen += [*await texts_in_history(corner, run.id), result.model_dump_json(), caplog.text]
    assert result.rounds == ROUNDS
    assert len(server.requests) == ROUNDS + 3
    # The secrets were there to be repeated, and the replies that were kept show that they have been.
    assert all(KEY in secrets_of(request) and GATE in secrets_of(request) for request in server.requests)
    assert result.text.count("***") >= 2
    assert "heard" in "".join(seen)
    assert len(await histories(corner.client, run.id)) > 1
    assert leaks(seen) == []
    # Nor do they come back to the provider in what it is told of its own turns.
    assert leaks([request.body.decode() for request in server.requests]) == []
    await corner.check_histories()


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 500])
async def test_r46_an_error_that_ends_a_run_repeats_no_secret(
    harness: Harness, caplog: pytest.LogCaptureFixture, api: str, status: int
) -> None:
    caplog.set_level(logging.DEBUG)

    def refuse(_: dict[str, JsonValue]) -> Response:
        echo = secrets_of(server.requests[-1])
        names: JsonValue = {"message": f"no: {echo}", "code": echo, "type": "invalid_request_error", "param": echo}
        if status == 200:
            return Streamed.of_events({"type": "error", "error": names} if api != "chat" else {"error": names})
        return Response.of({"type": "error", "error": names}, status)

    async with ModelServer(refuse) as server, loopback_client() as http:
        environment = {**ENVIRONMENT, "ACME_BASE_URL": server.base_url, "ACME_API": api}
        providers = providers_in(environment, http, AGENT)
        if status == 500:
            # This one would be asked again for minutes, so it is asked by itself.
            request = CompletionRequest("any", "Be brief.", (Message(role="user", text="Hello"),), ())
            with pytest.raises(Exception, match="answered 500: no: ") as caught:
                await providers["acme"].complete(request)
            assert leaks([str(caught.value), repr(caught.value), caplog.text]) == []
            return
        async with harness.worker(AGENT, providers=providers):
            run = await harness.start(PROMPT)
            error, partial = await failure_of(run)
        texts = [*texts_in((await run.describe()).raw_description), *await texts_in_history(harness, run.id)]
    assert "no: " in error.message
    assert leaks([*texts, error.message, partial.model_dump_json(), caplog.text]) == []


@pytest.mark.parametrize("api", PATHS)
async def test_who_watches_sees_no_secret_however_it_is_cut(api: str) -> None:
    """One character a piece: no piece alone holds a secret."""
    deltas: list[Delta] = []

    async def publish(delta: Delta) -> None:
        deltas.append(delta)

    def letters(_: dict[str, JsonValue]) -> Response:
        said = f"a {secrets_of(server.requests[-1])} z"
        if api == "messages":
            whole = [*asking_messages.events(asking_messages.reply(asking_messages.text("ab")))]
            pieces = [asking_messages.delta(0, "text_delta", text=letter) for letter in said]
            # In place of the two pieces of its text.
            return Streamed.of_events(*whole[:3], *pieces, *whole[5:])
        if api == "responses":
            ending = asking_responses.ending(asking_responses.message(said))
            return Streamed.of_events(*asking_responses.text_events(*said), ending)
        chunks = [chat_chunks.chunk({"content": letter}) for letter in said]
        return Streamed.of_events(*chunks, chat_chunks.chunk({}, "stop"), "[DONE]")

    async with ModelServer(letters) as server, loopback_client() as http:
        environment = {**ENVIRONMENT, "ACME_BASE_URL": server.base_url, "ACME_API": api}
        provider = providers_in(environment, http, AGENT)["acme"]
        request = CompletionRequest("any", "Be brief.", (Message(role="user", text="Hello"),), ())
        completion = await provider.complete(request, publish)
    bearer = "" if api == "messages" else "Bearer "
    assert completion.text == f"a {bearer}*** *** z"
    assert "".join(delta.text for delta in deltas) == completion.text


def test_a_header_is_checked_where_the_provider_is_built_too() -> None:
    http = loopback_client()
    for name, value in (("x-gate", f"{GATE}\r\nx: y"), ("x-gate", ""), ("x gate", "x"), ("Authorization", "x")):
        with pytest.raises(ValueError, match="header") as caught:
            HttpModel(http, ChatCompletions(), "http://h", None, headers={name: value})
        assert leaks([str(caught.value)]) == []
