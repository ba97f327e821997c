"""What is no `Exception` and yet raised by people's code around a tool: told as any other, without secrets, and cut."""

import asyncio
from typing import NoReturn

import pytest

from activities.catalog import Catalog
from activities.providers.interface import Completion, CompletionRequest, Publish, to_nobody
from activities.tooling import tool
from contracts.outcomes import ToolOutcome
from contracts.policies import CompensationRule
from contracts.tools import Reconciliation, ToolInvocation, UndoRequest
from tests.support.agents import PROMPT, scripted_agent
from tests.support.harness import Harness, calls, failure_of, says, script
from tests.support.tool_worker import texts_in_history

SECRET = "hunter2-hunter2"
ESCAPING = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("kind", ESCAPING)
async def test_whatever_is_raised_around_a_tool_leaves_cut_and_without_secrets(
    harness: Harness, kind: type[BaseException]
) -> None:
    said = f"password: {SECRET}, " + "z" * 3_000

    class Mute(Exception):
        """Cannot even say what it is."""

        def __str__(self) -> str:
            raise kind(said)

    class Unwritable(dict[str, str]):
        """Cannot be written as JSON."""

        def values(self) -> NoReturn:
            raise kind(said)

    class Wordless:
        """Says nothing of the undo that returns it."""

        def __str__(self) -> str:
            raise kind(said)

    @tool(side_effect="write", settings=("KEY",))
    def written(invocation: ToolInvocation) -> dict[str, str]:
        """Write, and return what cannot be written down."""
        return Unwritable()

    @tool(side_effect="write", settings=("KEY",), compensation=CompensationRule())
    def wordless(invocation: ToolInvocation) -> str:
        """Fail."""
        raise RuntimeError("half way")

    @wordless.undo
    def undo_without_a_word(request: UndoRequest) -> object:
        return Wordless()

    @tool(side_effect="write", settings=("KEY",))
    def prepared(invocation: ToolInvocation) -> str:
        """Write."""
        return "done"

    @prepared.prepare_result
    def refuse(outcome: ToolOutcome) -> ToolOutcome:
        raise kind(said)

    @tool(side_effect="write", settings=("KEY",), reconciles=True)
    def looked_up(invocation: ToolInvocation) -> str:
        """Fail to say what is wrong."""
        raise Mute

    @looked_up.reconcile
    async def look_up(invocation: ToolInvocation) -> Reconciliation:
        raise kind(said)

    @tool(side_effect="write", settings=("KEY",), compensation=CompensationRule())
    def undone(invocation: ToolInvocation) -> str:
        """Fail."""
        raise RuntimeError("half way")

    @undone.undo
    def undo(request: UndoRequest) -> None:
        raise kind(said)

    tools = (written, prepared, looked_up, undone, wordless)
    replies = script(*(calls((each.name, {})) for each in tools), says("Done."))
    async with harness.serving(Catalog([scripted_agent(*tools)]), {"main": replies}, {"KEY": SECRET}):
        run = await harness.start(PROMPT)
        result = await run.result()
    states = [effect.state for effect in result.effects]
    assert states == ["done", "done", "unknown", "compensation_failed", "compensated"]
    assert "cannot be written as JSON" in result.tool_results[0].text
    assert "rejected during preparation" in result.tool_results[1].text
    compensation = result.effects[3].compensation
    assert compensation is not None
    assert compensation.text.startswith(f"{kind.__name__}: password: ***, zzz")
    texts = await texts_in_history(harness, run.id)
    assert not [text for text in texts if SECRET in text or "z" * 1_000 in text]


@pytest.mark.parametrize("kind", ESCAPING)
async def test_a_model_provider_that_raises_such_is_asked_once_and_not_quoted(
    harness: Harness, kind: type[BaseException]
) -> None:
    class Broken:
        asked = 0

        async def complete(self, request: CompletionRequest, publish: Publish = to_nobody) -> Completion:
            self.asked += 1
            raise kind(SECRET)

    model = Broken()
    agent = scripted_agent().model_copy(update={"model": "broken:main"})
    async with harness.worker(agent, providers={"broken": model}):
        run = await harness.start(PROMPT)
        error, _ = await failure_of(run)
    assert (error.type, model.asked) == ("InternalError", 1)
    assert kind.__name__ in error.message
    assert not [text for text in await texts_in_history(harness, run.id) if SECRET in text]
