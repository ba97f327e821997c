"""A streamed reply of Chat Completions, put together again."""

import json
from collections.abc import Iterable

from pydantic import JsonValue

from activities.providers import failures
from activities.providers.chat_pieces import REASONING_FIELDS, Calls, Content, Details, whole
from activities.providers.chat_usage import usage_told
from activities.providers.dialect import ReplyStream
from activities.providers.failures import Endpoint, ReportedError
from activities.providers.interface import Delta, ModelFailure
from activities.providers.readings import as_object, as_text, objects
from contracts.messages import Usage
from contracts.text import encodable

_END = "[DONE]"
# Fields of a delta whose pieces are one text.
_JOINED = frozenset({*REASONING_FIELDS, "refusal"})
# Fields that say nothing about the reply.
_DROPPED = frozenset({"role", "content", "tool_calls", "function_call", "reasoning_details"})


class ChatStream(ReplyStream):
    """Folds chunks into the body of a reply that was not streamed: the first choice, and the usage that was told last.

    The end is `[DONE]`, with or without a finish reason before it (Snowflake's models give none). A connection that the
    server closes in good order after a finish reason is an end too: gpustack, Perplexity and others send no `[DONE]`.
    Anything else is a reply that broke off, however much of it is there. The finish reason is the last one, since
    routers repeat and correct it; chunks after it are read, as they bring more calls (Z.ai) and the usage. An error in
    the stream ends it at once, and usage that comes after it is not waited for.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._ended = False
        self._begun = False
        self._finish_reason: str | None = None
        self._usage: JsonValue = None
        self._content = Content()
        self._details = Details()
        self._calls = Calls()
        self._legacy_call = Calls()
        self._texts: dict[str, list[str]] = {}
        self._others: dict[str, JsonValue] = {}

    def add(self, event: str, data: str) -> list[Delta]:
        """Take one event. Raises `ModelFailure` for an error that it tells of, and as ModelUnavailable, retryable, for
        data that is no chunk."""
        if self._ended or not data.strip():
            return []
        if data.strip() == _END:
            self._ended = True
            return []
        chunk = self._chunk(event, data)
        # Groq tells the usage in a field of its own; where it also has the common one, both say the same.
        for told in (as_object(chunk.get("x_groq")).get("usage"), chunk.get("usage")):
            if isinstance(told, dict) and told:
                self._usage = told
        choice = next((choice for choice in objects(chunk.get("choices")) if choice.get("index") in (0, None)), {})
        error = failures.error_in(chunk) or failures.error_in(choice)
        if error:
            raise failures.from_error(error, self._endpoint)
        return list(self._deltas(choice)) if choice else []

    @property
    def ended(self) -> bool:
        """Whether `[DONE]` was seen."""
        return self._ended

    @property
    def may_end(self) -> bool:
        """Whether a finish reason was seen."""
        return self._finish_reason is not None

    @property
    def usage(self) -> Usage | None:
        """The usage that was told last."""
        return usage_told(self._usage)

    def reply(self) -> dict[str, JsonValue]:
        """The body of a `chat.completion`; without a choice if none was seen."""
        if not self._begun:
            return {"choices": [], "usage": self._usage}
        message: dict[str, JsonValue] = {"role": "assistant", "content": self._content.value(), **self._others}
        message |= {name: whole(pieces) for name, pieces in self._texts.items()}
        lists = {"reasoning_details": self._details.value(), "tool_calls": self._calls.value()}
        message |= {name: value for name, value in lists.items() if value}
        if legacy := self._legacy_call.value():
            message["function_call"] = as_object(legacy[0]).get("function")
        choice: JsonValue = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {"choices": [choice], "usage": self._usage}

    def _chunk(self, event: str, data: str) -> dict[str, JsonValue]:
        """The chunk that the data is. Of an event that is called `error`, all of the data tells what is wrong."""
        try:
            # Lenient about control characters in texts: some servers do not escape them, and nothing is lost by it.
            chunk: JsonValue = json.loads(data, strict=False)
        # What is whole but beyond this machine was paid for, and would come again.
        except RecursionError:
            raise ModelFailure("ModelBehaviour", "a part of the reply is nested too deeply to be read") from None
        except json.JSONDecodeError:
            chunk = data if event == "error" else None
        except ValueError as error:
            raise ModelFailure("ModelBehaviour", f"a part of the reply cannot be read: {error}") from None
        if event == "error" and not failures.error_in(chunk):
            told = failures.error_in({"error": chunk}) or ReportedError("an error without a word")
            raise failures.from_error(told, self._endpoint)
        if isinstance(chunk, dict):
            return chunk
        if event in ("", "message"):
            reason = f"{self._endpoint.address} sent something that is no chunk of a reply"
            raise ModelFailure("ModelUnavailable", reason, retryable=True)
        # Chat Completions names no events but errors: proxies keep connections open with some of their own.
        return {}

    def _deltas(self, choice: dict[str, JsonValue]) -> Iterable[Delta]:
        delta = as_object(choice.get("delta"))
        # Servers that only seem to stream send the whole message in one chunk.
        message = delta or (as_object(choice.get("message")) if not self._begun else {})
        self._begun = True
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str) and finish_reason:
            self._finish_reason = finish_reason
        for name, value in message.items():
            if name in _JOINED:
                if isinstance(value, str):
                    self._texts.setdefault(name, []).append(value)
            elif name not in _DROPPED and value is not None:
                self._others[name] = value
        yield from self._reasoning(message)
        for is_reasoning, text in self._content.add(message.get("content")):
            if text:
                yield Delta("reasoning" if is_reasoning else "text", encodable(text))
        if refusal := as_text(message.get("refusal")):
            yield Delta("refusal", refusal)
        for piece in objects(message.get("tool_calls")):
            position, name, arguments = self._calls.add(piece)
            yield Delta("tool_call", encodable(arguments), call=position, name=name)
        if isinstance(message.get("function_call"), dict):
            self._legacy_call.add({"index": 0, "function": message["function_call"]})

    def _reasoning(self, message: dict[str, JsonValue]) -> Iterable[Delta]:
        detailed = self._details.add(message.get("reasoning_details"))
        plain = next((text for name in REASONING_FIELDS if (text := as_text(message.get(name)))), "")
        if plain or detailed:
            yield Delta("reasoning", plain or detailed)
