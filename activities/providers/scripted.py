"""A model that plays a script: for tests, demos, and trying out an agent without a key."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import ConfigDict, Field, JsonValue
from temporalio import activity

from activities.providers.interface import (
    Completion,
    CompletionRequest,
    Delta,
    ModelErrorType,
    ModelFailure,
    Publish,
    RawToolCall,
    to_nobody,
)
from contracts.messages import Usage
from contracts.records import MalformedPayload, Record
from contracts.text import encodable, legal_json


class ScriptedUsage(Usage):
    """Tokens that a reply claims to have used."""

    model_config = ConfigDict(extra="forbid")


class ScriptedCall(Record):
    """A tool call. `arguments` is an object, or a string that is sent as the argument text, legal or not."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    arguments: dict[str, JsonValue] | str = {}


class ScriptedFailure(Record):
    """An attempt that fails. See `ModelFailure` for what the fields mean."""

    model_config = ConfigDict(extra="forbid")

    type: ModelErrorType = "ModelUnavailable"
    message: str = "the script says so"
    retryable: bool = True
    retry_after: float | None = Field(default=None, ge=0)
    usage: ScriptedUsage | None = None


class PlainReply(Record):
    """What the model says. See `Completion` for what the fields mean; `usage` null is a model that does not count.

    Before it says that, the first attempts of the call end with `failures`, one each.
    """

    model_config = ConfigDict(extra="forbid")

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    truncated: bool = False
    paused: bool = False
    opaque: tuple[JsonValue, ...] = ()
    usage: ScriptedUsage | None = ScriptedUsage()
    failures: tuple[ScriptedFailure, ...] = ()


class Reply(PlainReply):
    """A reply, and the one that takes its place when the last tool message of the transcript tells of a failure."""

    after_failure: PlainReply | None = None


class Script(Record):
    """The replies of one run, or of one conversation, in order."""

    model_config = ConfigDict(extra="forbid")

    replies: tuple[Reply, ...] = Field(min_length=1)


class Scripted:
    """A `ModelProvider` that plays scripts. The model's name is the path of a JSON file below `root`, or a key of
    `scripts`, which goes first.

    The reply is the one whose index is the number of assistant messages in the transcript: the same request always
    gets the same reply, however often it is sent.
    """

    def __init__(self, root: Path, scripts: Mapping[str, Script] = MappingProxyType({})) -> None:
        self._root = root
        self._scripts = scripts

    async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
        """The script's next reply. Raises `ModelFailure`: `ModelBadRequest` for a script that is missing, outside the
        root or broken, `ModelBehaviour` for one that has come to its end."""
        script = await asyncio.to_thread(self.script, request.model)
        index = sum(message.role == "assistant" for message in request.messages)
        if index >= len(script.replies):
            had = f"script {request.model!r} has {len(script.replies)} replies"
            raise ModelFailure("ModelBehaviour", f"{had}, and the transcript asks for number {index + 1}")
        reply = script.replies[index]
        failed = next((not message.ok for message in reversed(request.messages) if message.role == "tool"), False)
        played = reply.after_failure if failed and reply.after_failure else reply
        attempt = activity.info().attempt if activity.in_activity() else 1
        for failure in played.failures[attempt - 1 : attempt]:
            raise _failure(failure)
        completion = _completion(played)
        if completion.text:
            await publish(Delta("text", completion.text))
        return completion

    def script(self, name: str) -> Script:
        """The script of this name. Raises `ModelFailure` `ModelBadRequest` as `complete` does."""
        if name in self._scripts:
            return self._scripts[name]
        try:
            root = self._root.resolve()
            path = (root / name).resolve()
        except (OSError, ValueError) as error:
            raise ModelFailure("ModelBadRequest", f"script {name!r}: not a path: {error}") from None
        if not path.is_relative_to(root):
            raise ModelFailure("ModelBadRequest", f"script {name!r} is outside the directory of scripts")
        return load_script(path)


def load_script(path: Path) -> Script:
    """The script in a JSON file. Raises `ModelFailure` `ModelBadRequest` with the file and the mistake."""
    try:
        return Script.from_wire(path.read_bytes())
    except OSError as error:
        raise ModelFailure("ModelBadRequest", f"script {path}: {error.strerror}") from None
    except MalformedPayload as error:
        raise ModelFailure("ModelBadRequest", f"script {path}: {error}") from None


def _failure(failure: ScriptedFailure) -> ModelFailure:
    return ModelFailure(
        failure.type,
        failure.message,
        retryable=failure.retryable,
        retry_after=failure.retry_after,
        usage=None if failure.usage is None else Usage.model_validate(failure.usage.model_dump()),
    )


def _completion(reply: PlainReply) -> Completion:
    return Completion(
        text=encodable(reply.text),
        calls=tuple(RawToolCall(call.tool, _argument_text(call.arguments)) for call in reply.calls),
        finish_reason=reply.finish_reason,
        truncated=reply.truncated,
        paused=reply.paused,
        opaque=reply.opaque,
        usage=None if reply.usage is None else Usage.model_validate(reply.usage.model_dump()),
    )


def _argument_text(arguments: dict[str, JsonValue] | str) -> str:
    if isinstance(arguments, str):
        return encodable(arguments)
    return json.dumps(legal_json(arguments), ensure_ascii=False)
