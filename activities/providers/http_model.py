"""A model API over HTTP: one request a call, streamed or whole, and every failure classified once."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing, suppress
from types import MappingProxyType

import httpx
from httpx_sse import EventSource

from activities.providers import failures
from activities.providers.addresses import endpoint
from activities.providers.cut_off import marked_if_cut_off
from activities.providers.dialect import Dialect, ReplyStream
from activities.providers.failures import Endpoint
from activities.providers.interface import Completion, CompletionRequest, Delta, ModelFailure, Publish, to_nobody
from activities.providers.legal import compact_json
from activities.providers.readings import decoded
from activities.providers.request_headers import checked_header
from activities.providers.secrecy import Secret, SecretStream, checked_key, without_secret
from activities.providers.unpacking import ACCEPTED, unpacked

REPLY_MAX_BYTES = 16 * 1_048_576
# Some servers wrap each token in half a kilobyte: the longest replies that models write must come through.
STREAM_MAX_BYTES = 64 * 1_048_576
# Enough of an error to classify it; the rest of a longer or a later one is not read. Bytes, and seconds.
ERROR_MAX_BYTES = 1_048_576
ERROR_PATIENCE = 2.0
# After so many events, or pieces of one, it is another run's turn: a stream that was all received at once would keep
# its worker from everything else.
TURN_EVENTS = 64
# Seconds. A model may think for minutes before its first byte, or between two; what bounds the whole call is the
# activity's timeout.
TIMEOUT = httpx.Timeout(300.0, connect=10.0)


class HttpModel:
    """A `ModelProvider` for any server that speaks the dialect.

    `base_url` is the address up to and including the version, for example `https://api.openai.com/v1`; see `endpoint`.
    `key_name` is what the setting with the key is called: messages name it instead of the key; a server that wants no
    key gets None. `headers` go along with each request, and their values are kept as secret as the key. `streaming`
    off is for servers without it. `http` may be shared. Raises ValueError for an address, a key or a header that cannot
    be used.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        dialect: Dialect,
        base_url: str,
        api_key: str | None,
        key_name: str = "OPENAI_API_KEY",
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        streaming: bool = True,
    ) -> None:
        self._http = http
        self._dialect = dialect
        self._endpoint = Endpoint(endpoint(base_url, dialect.path), key_name)
        key = "" if api_key is None else checked_key(api_key, key_name)
        added = dict(checked_header(name, value) for name, value in headers.items())
        self._secret = Secret(key, *added.values())
        self._headers = {
            **dialect.headers(key),
            **added,
            "content-type": "application/json",
            "accept-encoding": ACCEPTED,
        }
        self._streaming = streaming

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        """The model's reply to one HTTP request. Raises `ModelFailure`; lets cancellation through."""
        try:
            completion = marked_if_cut_off(request, await self._send(request, publish))
        except ModelFailure as failure:
            raise failures.presentable(failure, self._secret) from None
        # After decoding: in the body, the key may be written in as many ways as JSON has to escape a text.
        return without_secret(completion, self._secret)

    async def _send(self, request: CompletionRequest, publish: Publish) -> Completion:
        # As long as the conversation is: whatever else this worker does must not wait for it.
        body = await asyncio.to_thread(self._body, request)
        address = self._endpoint.address
        stream = self._dialect.reply_stream(self._endpoint)
        try:
            async with self._http.stream(
                "POST", address, content=body, headers=self._headers, timeout=TIMEOUT, follow_redirects=False
            ) as response:
                if not response.is_success:
                    beginning = await _beginning(response)
                    raise failures.from_response(response.status_code, response.headers, beginning, self._endpoint)
                if _is_event_stream(response):
                    return await self._streamed(response, stream, publish)
                received = await _read(response, REPLY_MAX_BYTES)
        # TLS may raise its own errors, which are the operating system's and not the client's.
        except (httpx.RequestError, OSError) as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise ModelFailure(
                "ModelUnavailable", f"no reply from {address}: {reason}", retryable=True, usage=stream.usage
            ) from error
        if len(received) > REPLY_MAX_BYTES:
            raise self._too_long(REPLY_MAX_BYTES)
        reply = decoded(received.decode("utf-8-sig", errors="replace"), self._endpoint)
        completion = self._dialect.completion(reply, self._endpoint)
        # Of a server that does not stream, those who watch see the whole text in one piece.
        if completion.text:
            await publish(Delta("text", self._secret.hidden_in_reply(completion.text)))
        return completion

    def _body(self, request: CompletionRequest) -> bytes:
        return compact_json(self._dialect.body(request, self._streaming)).encode()

    async def _streamed(self, response: httpx.Response, stream: ReplyStream, publish: Publish) -> Completion:
        body = _Bounded(response, STREAM_MAX_BYTES)
        unsaid = SecretStream(self._secret)
        turns = _Turns()
        try:
            async with aclosing(EventSource(_event_stream(body)).aiter_sse()) as events:
                async for event in events:
                    await turns.next()
                    for delta in stream.add(event.event, event.data):
                        await turns.next()
                        await _publish_all(unsaid.add(delta), publish)
                    if stream.ended:
                        break
            if body.exceeded and not stream.ended:
                raise self._too_long(STREAM_MAX_BYTES)
            if not stream.ended and (body.unfinished or not stream.may_end):
                address = self._endpoint.address
                raise ModelFailure("ModelUnavailable", f"{address} broke the reply off", retryable=True)
            await _publish_all(unsaid.rest(), publish)
            return self._dialect.completion(stream.reply(), self._endpoint)
        except ModelFailure as failure:
            failure.usage = failure.usage or stream.usage
            raise

    def _too_long(self, max_bytes: int) -> ModelFailure:
        address = self._endpoint.address
        return ModelFailure("ModelBehaviour", f"{address} sent a reply of more than {max_bytes} bytes")


class _Bounded(httpx.AsyncByteStream):
    """The body of a response, or somewhat more than its first max_bytes."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self._response = response
        self._left = max_bytes
        self._end = b""

    @property
    def unfinished(self) -> bool:
        """Whether what was read so far ends within an event, which by the standard is not read any more."""
        lines = self._end.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return bool(lines) and not lines.endswith(b"\n\n")

    @property
    def exceeded(self) -> bool:
        """Whether there was more than max_bytes."""
        return self._left < 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in unpacked(self._response):
            self._left -= len(chunk)
            self._end = (self._end + chunk[-4:])[-4:]
            yield chunk
            if self.exceeded:
                return


class _Turns:
    """Lets others of the event loop have their turn."""

    def __init__(self) -> None:
        self._taken = 0

    async def next(self) -> None:
        """Returns when the next event may be looked at."""
        self._taken += 1
        if self._taken % TURN_EVENTS == 0:
            await asyncio.sleep(0)


async def _publish_all(deltas: Iterable[Delta], publish: Publish) -> None:
    """Publish in order."""
    for delta in deltas:
        await publish(delta)


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
    return b"".join([chunk async for chunk in _Bounded(response, max_bytes)])


async def _beginning(response: httpx.Response) -> bytes:
    """What comes of an error's body: its status says the most, and is not to be lost with the rest."""
    pieces = list[bytes]()
    with suppress(httpx.RequestError, OSError):
        async with asyncio.timeout(ERROR_PATIENCE):
            async for piece in _Bounded(response, ERROR_MAX_BYTES):
                pieces.append(piece)
    return b"".join(pieces)


def _is_event_stream(response: httpx.Response) -> bool:
    media_type: str = response.headers.get("content-type", "")
    return media_type.partition(";")[0].strip().lower() == "text/event-stream"


def _event_stream(body: _Bounded) -> httpx.Response:
    """The body as the standard wants event streams read: in UTF-8 whatever the header says, no byte order mark."""
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body, default_encoding="utf-8-sig")
