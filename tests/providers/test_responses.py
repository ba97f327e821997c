"""What a request of the Responses API holds."""

from dataclasses import replace

import pytest
from pydantic import JsonValue

from activities.providers.failures import Endpoint
from activities.providers.http_model import HttpModel
from activities.providers.interface import CompletionRequest
from activities.providers.responses import Responses
from activities.providers.responses_replies import completion
from contracts.messages import Message, ToolCall
from contracts.models import ModelSettings
from contracts.tools import ToolContract
from tests.providers.asking_responses import HELLO, KEY, REQUEST, asked, body, called, heard, message, replied, thought
from tests.providers.legality_responses import request_illegality
from tests.providers.model_server import ModelServer, Response
from tests.support.loopback import loopback_client

LOOKUP = ToolContract(
    name="lookup", description="Looks up.", input_schema={"type": "object", "properties": {}}, side_effect="read"
)
WITH_TOOL = replace(REQUEST, tools=(LOOKUP,))
PERSON: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SEARCH: dict[str, JsonValue] = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "ruby"},
}


def sent(request: CompletionRequest) -> dict[str, JsonValue]:
    """The body, which the API accepts."""
    wire = Responses().body(request, stream=True)
    assert request_illegality(wire) is None
    return wire


def items(*messages: Message) -> list[JsonValue]:
    """The input items of a conversation that begins with a greeting, without that."""
    wire = sent(asked(HELLO, *messages))["input"]
    assert isinstance(wire, list)
    return wire[1:]


def with_settings(request: CompletionRequest = REQUEST, **settings: object) -> dict[str, JsonValue]:
    return sent(replace(request, settings=ModelSettings.model_validate(settings)))


def call(call_id: str, provider_call_id: str | None = None, **arguments: JsonValue) -> ToolCall:
    return ToolCall(call_id=call_id, tool="lookup", arguments=arguments, provider_call_id=provider_call_id)


def answer(call_id: str, text: str = "ok") -> Message:
    return Message(role="tool", call_id=call_id, text=text)


def turn(*output: JsonValue) -> Message:
    """The turn as the runtime keeps what a reply says."""
    reply = completion(body(*output), Endpoint("http://h/v1/responses", "K"))
    calls = tuple(
        ToolCall(call_id=f"call_{number}", tool=raw.name, arguments={}, provider_call_id=raw.provider_call_id)
        for number, raw in enumerate(reply.calls)
    )
    return Message(role="assistant", text=reply.text, tool_calls=calls, opaque=reply.opaque)


def sent_back(*output: JsonValue) -> list[JsonValue]:
    """The items of a turn as they go back."""
    kept = turn(*output)
    return items(kept, *(answer(each.call_id) for each in kept.tool_calls))[: -len(kept.tool_calls) or None]


async def test_a_request_says_what_the_api_needs() -> None:
    async with ModelServer([replied(message("Hi"))]) as server, loopback_client() as http:
        await HttpModel(http, Responses(), server.base_url, f" {KEY}\n").complete(WITH_TOOL)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/responses")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json == {
        "model": "gpt-5",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "store": False,
        "tools": [
            {
                "type": "function",
                "name": "lookup",
                "description": "Looks up.",
                "parameters": LOOKUP.input_schema,
                "strict": False,
            }
        ],
        "include": ["reasoning.encrypted_content"],
    }


def test_without_a_key_there_is_no_header() -> None:
    assert Responses().headers("") == {}


def test_a_round_is_calls_and_then_their_answers() -> None:
    round_ = Message(role="assistant", text="Let me look.", tool_calls=(call("call_1", "fc:a", q="é"), call("call_2")))
    assert items(round_, answer("call_1"), answer("call_2", "")) == [
        {"role": "assistant", "content": "Let me look."},
        {"type": "function_call", "call_id": "fc:a", "name": "lookup", "arguments": '{"q":"é"}'},
        {"type": "function_call", "call_id": "call_2", "name": "lookup", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "fc:a", "output": "ok"},
        {"type": "function_call_output", "call_id": "call_2", "output": ""},
    ]


def test_calls_have_legal_names_and_ids() -> None:
    odd = ToolCall(call_id="call_1", tool="look up\n!", arguments={"x": float("nan")}, provider_call_id="c" * 65)
    repeated = [call("call_2", "again"), call("call_3", "again"), call("call_4", "c" * 64)]
    wire = items(Message(role="assistant", tool_calls=(odd, *repeated)), *(answer(f"call_{n}") for n in (1, 2, 3, 4)))
    assert [(each["call_id"], each["name"]) for each in wire[:4] if isinstance(each, dict)] == [
        ("call_1", "look_up__"),
        ("again", "lookup"),
        ("call_3", "lookup"),
        ("c" * 64, "lookup"),
    ]


def test_an_empty_turn_and_a_missing_answer_are_made_legal() -> None:
    wire = items(Message(role="assistant", text=" \n"), Message(role="assistant", tool_calls=(call("call_1"),)))
    assert [each["type"] for each in wire if isinstance(each, dict)] == ["function_call", "function_call_output"]
    assert "no answer is recorded" in str(wire[1])


def test_reasoning_goes_back_first_and_with_the_same_bytes() -> None:
    encrypted = "gAAA+/=\u2028é" * 50
    wire = sent_back(thought(encrypted, "**Looking**", ""), message("Let me look."), called(), called(call_id="call_b"))
    assert wire[0] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "**Looking**"}, {"type": "summary_text", "text": ""}],
        "encrypted_content": encrypted,
    }
    assert [each.get("type") for each in wire if isinstance(each, dict)] == [
        "reasoning",
        None,
        "function_call",
        "function_call",
    ]


def test_items_go_back_in_their_places() -> None:
    output = (
        thought("A"),
        SEARCH,
        thought("B", id="rs_1"),
        message("It is 4."),
        thought("C"),
        called(),
        message("So."),
    )
    wire = sent_back(*output)
    assert [
        each.get("encrypted_content") or each.get("type") or each["content"] for each in wire if isinstance(each, dict)
    ] == [
        "A",
        "web_search_call",
        "B",
        "It is 4.",
        "C",
        "function_call",
        "So.",
    ]
    assert wire[1] == SEARCH


@pytest.mark.parametrize("encrypted", [None, ""])
def test_reasoning_that_the_api_cannot_know_stays_here(encrypted: str | None) -> None:
    kept = turn(thought(encrypted, "Looking."), called())
    assert "Looking." in str(kept.opaque)
    wire = items(kept, answer("call_0"))
    assert [each["type"] for each in wire if isinstance(each, dict)] == ["function_call", "function_call_output"]


def test_reasoning_that_nothing_follows_stays_here() -> None:
    assert sent_back(message("Wait."), thought("A")) == [{"role": "assistant", "content": "Wait."}]
    assert items(turn(thought("A")), Message(role="user", text="Go on.")) == [{"role": "user", "content": "Go on."}]


def test_an_item_that_wants_an_answer_of_its_own_stays_here() -> None:
    computer: JsonValue = {"type": "computer_call", "id": "cu_1", "call_id": "call_c", "action": {"type": "click"}}
    search: JsonValue = {"type": "tool_search_call", "execution": "client", "call_id": "call_t", "arguments": {}}
    assert sent_back(computer, search, message("Hm.")) == [{"role": "assistant", "content": "Hm."}]


def test_a_text_after_a_call_comes_before_it_where_servers_want_their_answers_at_once() -> None:
    wire = sent_back(called(), message("And another."), called(call_id="call_b"))
    assert [each.get("type") for each in wire if isinstance(each, dict)] == [None, "function_call", "function_call"]


def test_every_setting_has_its_place() -> None:
    wire = with_settings(
        WITH_TOOL,
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=100,
        reasoning_effort="low",
        parallel_tool_calls=False,
        stop=("END",),
        seed=7,
    )
    plain = sent(WITH_TOOL)
    assert {name: wire[name] for name in wire if wire[name] != plain.get(name)} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "reasoning": {"effort": "low", "summary": "auto"},
        "parallel_tool_calls": False,
    }


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("auto", None),
        ("none", "none"),
        ("required", "required"),
        ("lookup", {"type": "function", "name": "lookup"}),
    ],
)
def test_a_tool_may_be_chosen(choice: str, told: JsonValue) -> None:
    assert with_settings(WITH_TOOL, tool_choice=choice).get("tool_choice") == told


def test_without_tools_there_is_nothing_to_choose() -> None:
    assert with_settings(tool_choice="required", parallel_tool_calls=True) == sent(REQUEST)


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "my-gpt4o", "gpt-5-chat-latest"])
def test_a_model_that_does_not_reason_is_not_asked_for_reasoning(model: str) -> None:
    assert "include" not in sent(replace(REQUEST, model=model))


@pytest.mark.parametrize("model", ["gpt-5.2", "o4-mini", "grok-4.3", "openai.gpt-oss-20b", "my-deployment"])
def test_any_other_model_is_asked_for_reasoning_that_can_go_back(model: str) -> None:
    assert sent(replace(REQUEST, model=model))["include"] == ["reasoning.encrypted_content"]


def test_search_is_one_more_tool() -> None:
    tools = sent(replace(WITH_TOOL, web_search=True))["tools"]
    assert isinstance(tools, list)
    assert tools[1:] == [{"type": "web_search"}]
    assert sent(replace(REQUEST, web_search=True))["tools"] == [{"type": "web_search"}]


def with_schema(schema: dict[str, JsonValue], **settings: object) -> dict[str, JsonValue]:
    return with_settings(replace(REQUEST, output_schema=schema), **settings)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (PERSON, True),
        ({**PERSON, "additionalProperties": True}, False),
        ({**PERSON, "required": ["name"]}, False),
        ({**PERSON, "properties": {"name": {"type": "string", "default": "x"}, "tags": {}}}, False),
        ({**PERSON, "properties": {"name": {"anyOf": [{"type": "object"}, {"type": "null"}]}, "tags": {}}}, False),
        ({**PERSON, "properties": {"name": {"$ref": "#/$defs/n"}, "tags": {}}, "$defs": {"n": {"oneOf": []}}}, False),
    ],
)
def test_the_shape_of_the_answer_is_strict_where_the_api_can(schema: dict[str, JsonValue], strict: bool) -> None:
    wire = with_schema(schema)
    assert wire["text"] == {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}}
    assert wire["instructions"] == "Be brief."


def test_a_schema_may_be_told_in_words() -> None:
    wire = with_schema(PERSON, native_output=False)
    assert "text" not in wire
    assert str(wire["instructions"]).startswith("Be brief.\n\nAnswer with JSON that matches this JSON Schema")
    assert '"additionalProperties":false' in str(wire["instructions"])


async def test_what_a_server_says_of_itself_goes_back_to_it_unchanged() -> None:
    """R-x02: three rounds with a server that answers 400 unless reasoning comes back first and byte-equal."""
    given: list[JsonValue] = []
    transcript = [HELLO]
    for number in range(3):
        said: list[JsonValue] = [thought(f"gAA{number}=", f"Thought {number}."), called(call_id=f"call_{number}")]

        def check(request: dict[str, JsonValue], said: list[JsonValue] = said) -> Response:
            wire = request["input"]
            assert isinstance(wire, list)
            assert request_illegality(request) is None
            assert [each for each in wire if isinstance(each, dict) and each.get("type") == "reasoning"] == given
            return replied(*said)

        reply = await heard(check, asked(*transcript), [])
        given.append(
            {
                "type": "reasoning",
                "summary": thought("", f"Thought {number}.")["summary"],
                "encrypted_content": f"gAA{number}=",
            }
        )
        made = call(f"call_{number}", reply.calls[0].provider_call_id)
        kept = Message(role="assistant", text=reply.text, tool_calls=(made,), opaque=reply.opaque)
        transcript += [Message.model_validate_json(kept.model_dump_json()), answer(made.call_id)]
