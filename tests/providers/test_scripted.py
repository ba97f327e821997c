import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from activities.providers.interface import CompletionRequest, ModelFailure, RawToolCall
from activities.providers.scripted import Reply, Script, Scripted, load_script
from contracts.messages import Message, ToolCall, Usage

FIND: JsonValue = {"tool": "find_order", "arguments": {"order_id": "A-1"}}
SCRIPT: JsonValue = {
    "replies": [
        {"calls": [FIND, {"tool": "find_order", "arguments": '{"order_id":'}], "finish_reason": "tool_calls"},
        {"text": "Found.", "usage": {"input_tokens": 3}, "after_failure": {"text": "Not found.", "truncated": True}},
    ]
}


def asked(model: str, *messages: Message) -> CompletionRequest:
    return CompletionRequest(model, "Be brief.", (Message(role="user", text="Hello"), *messages), ())


def round_with(*oks: bool) -> tuple[Message, ...]:
    calls = tuple(ToolCall(call_id=f"call_{n}", tool="find_order", arguments={}) for n in range(len(oks)))
    results = (Message(role="tool", text="r", call_id=f"call_{n}", ok=ok) for n, ok in enumerate(oks))
    return (Message(role="assistant", tool_calls=calls), *results)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "scripts"
    directory.mkdir()
    (directory / "refund.json").write_text(json.dumps(SCRIPT))
    (tmp_path / "secret.json").write_text(json.dumps(SCRIPT))
    return directory


async def refused(root: Path, model: str, *messages: Message) -> ModelFailure:
    with pytest.raises(ModelFailure) as caught:
        await Scripted(root).complete(asked(model, *messages))
    assert not caught.value.retryable
    return caught.value


async def test_the_first_reply_is_played_with_parsed_and_raw_arguments(root: Path) -> None:
    completion = await Scripted(root).complete(asked("refund.json"))
    assert completion.calls == (
        RawToolCall("find_order", '{"order_id": "A-1"}'),
        RawToolCall("find_order", '{"order_id":'),
    )
    assert completion.finish_reason == "tool_calls"
    assert completion.usage == Usage()


async def test_the_reply_follows_from_the_transcript_alone(root: Path) -> None:
    model = Scripted(root)
    for _ in range(2):
        completion = await model.complete(asked("refund.json", *round_with(False, True)))
        assert (completion.text, completion.usage, completion.truncated) == ("Found.", Usage(input_tokens=3), False)


async def test_another_reply_is_played_when_the_last_tool_message_tells_of_a_failure(root: Path) -> None:
    completion = await Scripted(root).complete(asked("refund.json", *round_with(True, False)))
    assert (completion.text, completion.truncated) == ("Not found.", True)


async def test_a_script_in_memory_goes_before_a_file_of_its_name(root: Path) -> None:
    script = Script(replies=(Reply(text="From memory \ud83d."),))
    completion = await Scripted(root, {"refund.json": script}).complete(asked("refund.json"))
    assert completion.text == "From memory \ufffd."


async def test_a_script_that_has_ended_says_so(root: Path) -> None:
    failure = await refused(root, "refund.json", *round_with(True), Message(role="assistant", text="Found."))
    assert failure.type == "ModelBehaviour"
    assert "'refund.json' has 2 replies" in str(failure)


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", "a/../../secret.json", "x\x00y", "n" * 5_000])
async def test_a_script_outside_the_root_is_refused(root: Path, name: str) -> None:
    assert (await refused(root, name)).type == "ModelBadRequest"


async def test_a_link_out_of_the_root_is_refused(root: Path) -> None:
    (root / "link.json").symlink_to(root.parent / "secret.json")
    failure = await refused(root, "link.json")
    assert failure.type == "ModelBadRequest"
    assert "outside" in str(failure)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "replies"),
        ("{", "JSON"),
        ('{"replies": []}', "replies"),
        ('{"replies": [{"txt": "Hi"}]}', "replies.0.txt"),
        ('{"replies": [{"calls": [{"name": "x"}]}]}', "replies.0.calls.0.tool"),
        ('{"replies": [{"usage": {"input": 1}}]}', "replies.0.usage.input"),
        ('{"replies": [{"after_failure": {"after_failure": {}}}]}', "replies.0.after_failure.after_failure"),
        ('{"replies": [{"truncated": "no"}]}', "replies.0.truncated"),
    ],
)
def test_a_broken_script_is_named_with_its_mistake(tmp_path: Path, text: str, mistake: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ModelFailure, match=r"broken\.json") as caught:
        load_script(path)
    assert caught.value.type == "ModelBadRequest"
    assert mistake in str(caught.value) or not text


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFailure, match=r"none\.json") as caught:
        load_script(tmp_path / "none.json")
    assert caught.value.type == "ModelBadRequest"
