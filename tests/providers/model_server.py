"""A model API on the loopback interface: canned answers, computed answers, or a recorded conversation."""

import asyncio
import json
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pydantic import JsonValue

from tests.providers.legality import request_illegality


@dataclass(frozen=True)
class Response:
    """An HTTP response. Content-Length is added unless `headers` has one; `connection: close` is honoured."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def of(cls, body: JsonValue, status: int = 200) -> Self:
        """A JSON response. The body is ASCII, so it may hold lone surrogates, as escapes."""
        return cls(status, {"content-type": "application/json"}, json.dumps(body).encode())


@dataclass(frozen=True)
class Streamed(Response):
    """A response whose body is sent piece by piece, in chunks. An async iterable may wait between them. With `cut` the
    connection is closed after the last piece without the end that HTTP wants; else it ends in good order."""

    pieces: AsyncIterable[bytes] | Iterable[bytes] = ()
    cut: bool = False

    @classmethod
    def of_events(cls, *events: JsonValue | str, cut: bool = False) -> Self:
        """An event stream: a text is the data of an event as it is, everything else is written as JSON, its `type`, if
        it has one, as the event's own."""
        return cls(headers=EVENT_STREAM, pieces=tuple(server_sent(event) for event in events), cut=cut)

    @classmethod
    def in_pieces(cls, response: Response, sizes: Iterator[int]) -> Self:
        """The response re-cut into pieces of these sizes."""
        pieces, rest = list[bytes](), response.body
        while rest:
            size = next(sizes)
            pieces.append(rest[:size])
            rest = rest[size:]
        return cls(response.status, response.headers, pieces=tuple(pieces))


EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def server_sent(event: JsonValue | str) -> bytes:
    """One event as it stands in a stream."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = event.get("type") if isinstance(event, dict) else None
    head = f"event: {name}\n" if isinstance(name, str) else ""
    return f"{head}data: {json.dumps(event)}\n\n".encode()


@dataclass(frozen=True)
class Received:
    """A request as it arrived. Header names are in lower case; `json` is None when the body is no JSON object."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    json: dict[str, JsonValue] | None


Canned = Response | tuple[int, Mapping[str, str], bytes | str]
# Why an API would not accept a request body, or None.
Illegality = Callable[[dict[str, JsonValue]], str | None]
Answer = Callable[[dict[str, JsonValue]], Response | Awaitable[Response]]


def chat_reply(message: JsonValue, finish_reason: str | None = "stop", **more: JsonValue) -> Response:
    """A 200 with a chat.completion body that holds this message."""
    choice: JsonValue = {"index": 0, "message": message, "finish_reason": finish_reason}
    return Response.of({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], **more})


class ModelServer:
    """An HTTP/1.1 server with keep-alive, as an async context manager. It answers with the canned responses in order,
    or with what a callable, plain or async, makes of the request's JSON.

    `base_url` ends in /v1, but every path is answered. An exception of the callable, or a request after the last
    canned response, is answered with a 400 and raised when the server is left.
    """

    def __init__(self, answers: Answer | Sequence[Canned]) -> None:
        self._answers: Answer = answers if callable(answers) else _in_order([_response(each) for each in answers])
        self._connections: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._errors: list[BaseException] = []
        self.requests: list[Received] = []
        self.disconnects = 0
        self.base_url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._errors and error is None:
            raise self._errors[0]

    async def received(self, count: int) -> None:
        """Returns when so many requests have arrived."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)

    async def disconnected(self, count: int) -> None:
        """Returns when so many clients have gone away before they were answered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.disconnects >= count)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client has gone, or the test is over: neither is news.
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The byte that shows whether the client is still there is the first one of its next request.
        first = await reader.read(1)
        while first:
            request = await _receive(first, reader)
            async with self._changed:
                self.requests.append(request)
                self._changed.notify_all()
            answer = asyncio.ensure_future(self._answer(request))
            next_byte = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait({answer, next_byte}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    await self._gone()
                    return
                response = self._outcome(answer)
                if isinstance(response, Streamed):
                    whole = await self._stream(response, writer, next_byte)
                    if not whole:
                        return
                else:
                    writer.write(_encoded(response))
                    await writer.drain()
                if response.headers.get("connection") == "close":
                    return
                first = await next_byte
            finally:
                answer.cancel()
                next_byte.cancel()

    async def _stream(self, response: Streamed, writer: asyncio.StreamWriter, next_byte: asyncio.Future[bytes]) -> bool:
        """Send the pieces; says whether the client is still there and the connection in good order."""
        writer.write(_head(response, {"transfer-encoding": "chunked"}))
        sending = asyncio.create_task(_send_pieces(response.pieces, writer))
        try:
            waited: set[asyncio.Future[Any]] = {sending, next_byte}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                await self._gone()
                return False
            sending.result()
        except ConnectionError:
            await self._gone()
            return False
        finally:
            sending.cancel()
        if response.cut:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _gone(self) -> None:
        async with self._changed:
            self.disconnects += 1
            self._changed.notify_all()

    async def _answer(self, request: Received) -> Response:
        if request.json is None:
            raise AssertionError(f"{request.method} {request.path} came without a JSON object")
        answer = self._answers(request.json)
        return answer if isinstance(answer, Response) else await answer

    def _outcome(self, answer: asyncio.Future[Response]) -> Response:
        error = answer.exception()
        if error is None:
            return answer.result()
        self._errors.append(error)
        return Response.of({"error": {"message": f"the model server failed: {error}"}}, 400)


class RecordedConversation:
    """The responses of a recorded conversation, in order. An illegal request is answered with a 400 that says why, as
    providers do, and does not use up a response; `refused` lists the reasons. `illegality` holds the API's rules."""

    def __init__(self, responses: Sequence[Response], illegality: Illegality = request_illegality) -> None:
        self._responses = list(responses)
        self._illegality = illegality
        self.refused: list[str] = []
        self.left = len(self._responses)

    @classmethod
    def from_last_request(cls, request: dict[str, JsonValue], last: Response) -> Self:
        """Earlier replies as the last recorded request repeats them, the last one byte for byte as it was recorded."""
        messages = request["messages"]
        assert isinstance(messages, list)
        return cls([*(_replied(message) for message in messages if _is_reply(message)), last])

    def __call__(self, request: dict[str, JsonValue]) -> Response:
        reason = self._illegality(request)
        if reason is None and not self.left:
            reason = "the recorded conversation is over"
        if reason is not None:
            self.refused.append(reason)
            return Response.of({"error": {"message": reason, "type": "invalid_request_error"}}, 400)
        self.left -= 1
        return self._responses[-1 - self.left]


def _is_reply(message: JsonValue) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _replied(message: JsonValue) -> Response:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return chat_reply(message, "tool_calls" if calls else "stop")


def _in_order(responses: Sequence[Response]) -> Answer:
    left = iter(responses)

    def answer(_: dict[str, JsonValue]) -> Response:
        response = next(left, None)
        if response is None:
            raise AssertionError(f"more requests than the {len(responses)} canned responses")
        return response

    return answer


def _response(canned: Canned) -> Response:
    if isinstance(canned, Response):
        return canned
    status, headers, body = canned
    return Response(status, headers, body.encode() if isinstance(body, str) else body)


async def _receive(first: bytes, reader: asyncio.StreamReader) -> Received:
    head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = request_line.split(" ")
    pairs = (line.split(":", 1) for line in lines)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    try:
        sent = json.loads(body)
    except ValueError:
        sent = None
    return Received(method, path, headers, body, sent if isinstance(sent, dict) else None)


async def _send_pieces(pieces: AsyncIterable[bytes] | Iterable[bytes], writer: asyncio.StreamWriter) -> None:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            await _send_piece(piece, writer)
    else:
        for piece in pieces:
            await _send_piece(piece, writer)


async def _send_piece(piece: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    await writer.drain()


def _encoded(response: Response) -> bytes:
    return _head(response, {"content-length": str(len(response.body))}) + response.body


def _head(response: Response, framing: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {'OK' if response.status < 400 else 'Error'}"]
    lines += [f"{name}: {value}" for name, value in {**framing, **response.headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
