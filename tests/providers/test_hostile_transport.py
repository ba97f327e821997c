"""Somebody in between: connections that are tampered with, and what is kept from one answer to the next."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from activities.providers.addresses import endpoint
from activities.providers.chat_completions import ChatCompletions
from activities.providers.http_model import HttpModel
from activities.providers.interface import Delta, ModelFailure
from activities.providers.secrecy import FEW_CHARACTERS, Secret, SecretStream
from runtime.model_providers import model_client
from runtime.settings import StartupError
from tests.providers.asking import KEY, asked
from tests.providers.model_server import ModelServer, chat_reply

# A certificate for nobody, whose key is as public as this repository.
CERTIFICATE = Path(__file__).with_name("loopback.pem")
SECRET = "sk-TEST-TOKEN-9-and-more"


@asynccontextmanager
async def tampered() -> AsyncIterator[str]:
    """The base address of a server that answers over TLS, of whose answer somebody in between changes three bytes."""
    heard, over = asyncio.Event(), asyncio.Event()
    connections: list[asyncio.Task[None]] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tampers: bool) -> None:
        while data := await reader.read(65_536):
            writer.write(data[:-3] + bytes(3) if tampers and heard.is_set() else data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.set()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n")
        await over.wait()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        ways = [
            asyncio.create_task(forward(reader, to_them, False)),
            asyncio.create_task(forward(theirs, writer, True)),
        ]
        await over.wait()
        to_them.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    def kept(
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.append(task)
            with suppress(OSError, asyncio.IncompleteReadError):
                await serve(reader, writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

        return connected

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(kept(answer), "127.0.0.1", 0, ssl=context)
    relay = await asyncio.start_server(kept(between), "127.0.0.1", 0)
    try:
        yield f"https://127.0.0.1:{relay.sockets[0].getsockname()[1]}/v1"
    finally:
        over.set()
        server.close()
        relay.close()
        await asyncio.gather(*connections)


@pytest.mark.parametrize("verify", [True, False])
async def test_a_connection_that_is_tampered_with_is_asked_again(verify: bool) -> None:
    async with tampered() as address, httpx.AsyncClient(verify=verify) as http:
        with pytest.raises(ModelFailure, match=r"no reply from .*SSL") as caught:
            await HttpModel(http, ChatCompletions(), address, KEY).complete(asked())
    assert (caught.value.type, caught.value.retryable) == ("ModelUnavailable", True)
    assert ("CERTIFICATE_VERIFY_FAILED" in str(caught.value)) == verify


@pytest.mark.parametrize("host", ["xn--a", "xn--", "xn--\uff0e"])
def test_a_host_that_cannot_be_decoded_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(ValueError, match="must look like"):
        endpoint(f"http://{host}/v1", "/messages")


async def test_no_cookie_is_kept_for_the_next_request() -> None:
    hello = chat_reply({"content": "Hi"})
    with_cookie = (200, {**hello.headers, "set-cookie": "a=1; Path=/"}, hello.body)
    async with ModelServer([with_cookie, hello]) as server, model_client() as http:
        for _ in range(2):
            await HttpModel(http, ChatCompletions(), server.base_url, KEY).complete(asked())
        assert ["cookie" in request.headers for request in server.requests] == [False, False]
        assert len(http.cookies.jar) == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HTTP_PROXY", "ftp://u:hunter2@h"), ("ALL_PROXY", "socks5://u:hunter2@h"), ("SSL_CERT_FILE", "/hunter2")],
)
def test_a_proxy_or_a_certificate_that_cannot_be_used_is_one_line_at_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartupError, match=f"check .*{variable}") as caught:
        model_client()
    assert "hunter2" not in str(caught.value)


def shown(*deltas: Delta) -> dict[tuple[str, int], str]:
    """The texts of each part, as somebody who watches puts them together."""
    stream, texts = SecretStream(Secret(SECRET)), dict[tuple[str, int], str]()
    for told in [*(each for delta in deltas for each in stream.add(delta)), *stream.rest()]:
        texts[told.kind, told.call] = texts.get((told.kind, told.call), "") + told.text
    return texts


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11])
def test_a_key_in_pieces_with_other_parts_in_between_is_hidden(size: int) -> None:
    said = f"a {SECRET} z"
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    mixed = [
        delta
        for piece in pieces
        for delta in (Delta("text", piece), Delta("tool_call", piece, 0), Delta("tool_call", piece, 1))
    ]
    for text in shown(*mixed).values():
        assert text.startswith("a ")
        assert text.endswith("*** z")
        assert SECRET[: FEW_CHARACTERS + 1] not in text
        assert SECRET[-4:] not in text


def test_a_text_that_ends_as_a_key_begins_is_shown_before_the_next_part() -> None:
    stream = SecretStream(Secret(SECRET))
    told = [*stream.add(Delta("reasoning", "It is a tas")), *stream.add(Delta("reasoning", "k, s"))]
    told += [*stream.add(Delta("text", "Yes")), *stream.add(Delta("reasoning", "o")), *stream.rest()]
    assert [(delta.kind, delta.text) for delta in told] == [
        ("reasoning", "It is a ta"),
        ("reasoning", "sk, "),
        ("reasoning", "s"),
        ("text", "Ye"),
        ("text", "s"),
        ("reasoning", "o"),
    ]
