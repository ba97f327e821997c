"""How a model provider is reached: from settings alone, checked at the start, without a secret in any complaint."""

import re
from pathlib import Path

import pytest

from activities.providers.interface import ModelFailure
from runtime.provider_settings import PRESETS, provider_settings
from runtime.settings import Settings, StartupError
from tests.providers.model_server import ModelServer, Response
from tests.support.loopback import loopback_client
from tests.support.providers import PATHS, agent_with, asked, problems_in, providers_in, saying

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
KEY = "sk-TEST-TOKEN-9-not-to-be-shown"
HOST = "http://127.0.0.1:"
# a base address, and what comes before the API's own part of the path.
LEGAL = {
    "http://h": "/v1",
    "http://h/": "/v1",
    "http://h//": "/v1",
    "http://h/v1": "/v1",
    "http://h/v1/": "/v1",
    "http://h//v1//": "/v1",
    "http://h/anthropic/v1": "/anthropic/v1",
    "http://h/api/v1": "/api/v1",
    "http://h/v1beta/openai/v1": "/v1beta/openai/v1",
    " http://h/v1 ": "/v1",
    "\thttp://h/v1/\n": "/v1",
    "HTTP://h/v1": "/v1",
}
ILLEGAL = [
    "h:8080",
    "h",
    "/v1",
    "//h/v1",
    "ftp://h/v1",
    "http://",
    "http:///v1",
    "http://h:port/v1",
    "http://h:0/v1",
    "http://h:99999/v1",
    "http://[::1/v1",
    "http://h/v1?x=1",
    "http://h/v1?",
    "http://h/v1#x",
    "http://h/v 1",
    "http://h/v1\x00",
    "http://h\\v1",
    f"http://me:{KEY}@h/v1",
    "http://h/v1/v1",
    "http://h/v1/../v1",
    "http://h/v1/.",
    "http://h/v1/embeddings",
    "http://h/v1/models",
    "http://h/v1/chat",
]


def acme(**settings: str) -> dict[str, str]:
    """The environment of a provider `acme`."""
    return {f"ACME_{name}": value for name, value in settings.items()}


def mistakes(**settings: str) -> tuple[str, ...]:
    """Why an agent cannot use `acme`, each without the words that name the agent."""
    problems = problems_in(acme(**{"BASE_URL": "http://h/v1", **settings}), agent_with("acme:m"))
    assert all(problem.startswith("agent tester: its model is 'acme:m': ") for problem in problems)
    assert KEY not in "".join(problems)
    return tuple(problem.removeprefix("agent tester: its model is 'acme:m': ") for problem in problems)


async def path_of(api: str, form: str) -> str:
    """Where a request goes whose base address is `form`, `http://h` being a server's."""
    async with ModelServer([saying(api, "Hi")]) as server:
        root = server.base_url.removesuffix("/v1").removeprefix("http:")
        base = re.sub("//h(?=[/ \n]|$)", root, form, count=1)
        reply = await asked(acme(BASE_URL=base, API=api, API_KEY=KEY), "acme:m")
        (request,) = server.requests
    assert reply.text == "Hi"
    return request.path


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("form", LEGAL)
async def test_r49_every_legal_base_address_joins_to_one_path(api: str, form: str) -> None:
    assert await path_of(api, form) == f"{LEGAL[form]}{PATHS[api]}"


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("base", ["/v1", "/proxy/v1", "/no/version"])
async def test_r49_a_whole_endpoint_stays_as_it_is(api: str, base: str) -> None:
    assert await path_of(api, f"http://h{base}{PATHS[api]}") == f"{base}{PATHS[api]}"
    assert await path_of(api, f"http://h{base}{PATHS[api]}/") == f"{base}{PATHS[api]}"


@pytest.mark.parametrize(
    ("api", "path"), [("chat", "/inference"), ("responses", "/inference"), ("messages", "/inference/v1")]
)
async def test_r49_a_path_without_a_version_is_read_as_the_apis_own_clients_do(api: str, path: str) -> None:
    assert await path_of(api, "http://h/inference") == f"{path}{PATHS[api]}"


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("form", ILLEGAL)
def test_r49_an_illegal_base_address_is_refused_at_the_start(api: str, form: str) -> None:
    (mistake,) = mistakes(BASE_URL=form, API=api)
    assert mistake.startswith("ACME_BASE_URL: the base address ")
    # Of a provider that everybody knows it is a mistake whether it is used or not.
    (mistake,) = problems_in({"VLLM_BASE_URL": form, "VLLM_API": api})
    assert mistake.startswith("VLLM_BASE_URL: the base address ")
    assert KEY not in mistake


@pytest.mark.parametrize("api", PATHS)
def test_r49_the_endpoint_of_another_api_is_refused(api: str) -> None:
    for other in set(PATHS.values()) - {PATHS[api]}:
        (mistake,) = mistakes(BASE_URL=f"http://h/v1{other}", API=api)
        assert "the endpoint of another API" in mistake


@pytest.mark.parametrize("api", PATHS)
async def test_r49_a_page_that_is_not_found_is_one_error_with_the_address(api: str) -> None:
    page = Response(404, {"content-type": "text/html"}, f"<h1>404 {KEY}</h1>".encode())
    async with ModelServer([page]) as server:
        with pytest.raises(ModelFailure) as caught:
            await asked(acme(BASE_URL=server.base_url, API=api, API_KEY=KEY), "acme:m")
        assert len(server.requests) == 1
    assert (caught.value.type, caught.value.retryable) == ("ModelBadRequest", False)
    said = f"{server.base_url}{PATHS[api]} answered 404: check the base address and the model's name: an HTML page"
    assert said in str(caught.value)
    assert KEY not in str(caught.value)


def test_two_apis_of_one_server_share_an_address_that_is_right_for_one_of_them() -> None:
    environment = {"OPENAI_BASE_URL": "https://h/v1/responses", "OPENAI_API_KEY": KEY}
    assert problems_in(environment) == ()
    assert problems_in(environment, agent_with("openai_responses:m")) == ()
    (problem,) = problems_in(environment, agent_with("openai:m"))
    assert "OPENAI_BASE_URL: the base address is the endpoint of another API" in problem
    assert problems_in({"OPENAI_BASE_URL": "https://h/v1/models"}) == (
        "OPENAI_BASE_URL: the base address is the endpoint of another API: leave out its last part",
    )


@pytest.mark.parametrize("key", [KEY, f" {KEY}\n", f"\t{KEY} "])
@pytest.mark.parametrize(("api", "header"), [("chat", "authorization"), ("messages", "x-api-key")])
async def test_a_key_is_trimmed(api: str, header: str, key: str) -> None:
    async with ModelServer([saying(api, "Hi")]) as server:
        await asked(acme(BASE_URL=server.base_url, API=api, API_KEY=key), "acme:m")
        (request,) = server.requests
    assert request.headers[header].removeprefix("Bearer ") == KEY


@pytest.mark.parametrize("key", [f"{KEY} {KEY}", f"Bearer {KEY}", f"{KEY}\x01", f"{KEY}\n{KEY}", f"{KEY}é", "\\", " "])
def test_an_illegal_key_is_refused_without_being_shown(key: str) -> None:
    (mistake,) = mistakes(API_KEY=key)
    assert mistake.startswith("ACME_API_KEY ")
    (mistake,) = problems_in({"ANTHROPIC_API_KEY": key})
    assert mistake.startswith("ANTHROPIC_API_KEY ")
    assert KEY not in mistake


def test_a_preset_without_its_key_is_a_problem_for_whoever_uses_it_only() -> None:
    for name, preset in PRESETS.items():
        problems = problems_in({}, agent_with(f"{name}:m"))
        if preset.needs_key:
            (problem,) = problems
            assert problem.startswith(f"agent tester: its model is '{name}:m': set {preset.prefix}_API_KEY ")
        else:
            assert problems == ()
    assert problems_in({}) == ()


def test_the_providers_of_fallback_models_are_needed_as_well() -> None:
    agent = agent_with("ollama:m", "anthropic:m", "nobody:m")
    first, second = problems_in({}, agent)
    assert first.startswith("agent tester: a fallback model is 'anthropic:m': set ANTHROPIC_API_KEY")
    assert second.startswith(
        "agent tester: a fallback model is 'nobody:m': there is no such provider, only anthropic, "
    )
    assert second.endswith("; for a server of your own set NOBODY_BASE_URL")
    assert problems_in({"ANTHROPIC_API_KEY": KEY, "NOBODY_BASE_URL": "http://h"}, agent) == ()


def test_what_another_program_has_in_the_environment_is_none_of_our_business() -> None:
    environment = {"SHOP_BASE_URL": "/shop", "SHOP_API": "soap", "SHOP_HEADERS": "x", "SCRIPTED_BASE_URL": "http://h"}
    assert problems_in(environment) == ()
    assert len(problems_in(environment, agent_with("shop:m"))) == 3
    assert "scripted" not in provider_settings(environment)


@pytest.mark.parametrize("setting", ["off", " OFF "])
async def test_streaming_is_the_normal_way_and_can_be_switched_off(setting: str) -> None:
    async with ModelServer([saying("chat", "Hi", stream=True), saying("chat", "Hi")]) as server:
        await asked(acme(BASE_URL=server.base_url), "acme:m")
        await asked(acme(BASE_URL=server.base_url, STREAMING=setting), "acme:m")
        streams = [(request.json or {})["stream"] for request in server.requests]
        assert "authorization" not in server.requests[0].headers
    assert streams == [True, False]
    assert mistakes(STREAMING="no") == ("ACME_STREAMING must be on or off",)


async def test_headers_take_their_values_from_the_settings_they_name() -> None:
    environment = {
        **acme(HEADERS="X-Gateway-Key=GATEWAY_KEY, http-referer = SITE ,", API="messages", API_KEY=KEY),
        "GATEWAY_KEY": " gate way ",
        "SITE": "https://shop.example",
    }
    async with ModelServer([saying("messages", "Hi")]) as server:
        await asked({**environment, "ACME_BASE_URL": server.base_url}, "acme:m")
        (request,) = server.requests
    assert request.headers["x-gateway-key"] == "gate way"
    assert request.headers["http-referer"] == "https://shop.example"
    assert request.headers["x-api-key"] == KEY


async def test_a_header_may_replace_one_of_the_apis_own() -> None:
    environment = acme(HEADERS="Anthropic-Version=VERSION", API="messages") | {"VERSION": "2024-10-22"}
    async with ModelServer([saying("messages", "Hi")]) as server:
        await asked({**environment, "ACME_BASE_URL": server.base_url}, "acme:m")
        (request,) = server.requests
    assert request.headers["anthropic-version"] == "2024-10-22"


@pytest.mark.parametrize(
    ("written", "value", "mistake"),
    [
        ("X-Key=GATE_KEY", "", "set GATE_KEY, which the header X-Key takes its value from"),
        (f"X-Key={KEY}", "x", "write entry 1 as Header-Name=SETTING_NAME, and the value into that setting"),
        ("X-Key=GATE_KEY, X-Other", "x", "write entry 2 as Header-Name=SETTING_NAME, and the value into that setting"),
        ("=GATE_KEY", "x", "write entry 1 as Header-Name=SETTING_NAME, and the value into that setting"),
        ("X-Key=GATE_KEY,x-key=GATE_KEY", "x", "the header x-key comes twice"),
        ("X Key=GATE_KEY", "x", "'X Key' cannot be the name of a header"),
        ("Ünter=GATE_KEY", "x", "'Ünter' cannot be the name of a header"),
        ("Authorization=GATE_KEY", "x", "the header Authorization is set by the provider itself"),
        ("x-api-key=GATE_KEY", "x", "the header x-api-key is set by the provider itself"),
        ("Content-Type=GATE_KEY", "x", "the header Content-Type is set by the provider itself"),
        ("content-length=GATE_KEY", "x", "the header content-length is set by the provider itself"),
        ("Host=GATE_KEY", "x", "the header Host is set by the provider itself"),
        ("X-Key=GATE_KEY", " ", "the value of the header X-Key, which GATE_KEY holds, is empty"),
        (
            "X-Key=GATE_KEY",
            f"{KEY}\r\nx: y",
            "the value of the header X-Key, which GATE_KEY holds, holds characters that cannot be part of a header",
        ),
        (
            "X-Key=GATE_KEY",
            f"{KEY}é",
            "the value of the header X-Key, which GATE_KEY holds, holds characters that cannot be part of a header",
        ),
        (
            "X-Key=GATE_KEY",
            KEY * 1_000,
            "the value of the header X-Key, which GATE_KEY holds, is longer than 8192 characters",
        ),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(written: str, value: str, mistake: str) -> None:
    problems = problems_in({**acme(BASE_URL="http://h", HEADERS=written), "GATE_KEY": value}, agent_with("acme:m"))
    assert problems == (f"agent tester: its model is 'acme:m': ACME_HEADERS: {mistake}",)


def test_all_mistakes_of_a_provider_are_told_at_once() -> None:
    wrong = {"BASE_URL": "h", "API": "soap", "API_KEY": "a b", "STREAMING": "maybe", "HEADERS": "A=A_,Host=B_"}
    told = mistakes(**wrong)
    assert [line.partition(" ")[0].rstrip(":") for line in told] == [
        *("ACME_API", "ACME_BASE_URL", "ACME_API_KEY", "ACME_STREAMING", "ACME_HEADERS", "ACME_HEADERS")
    ]
    with pytest.raises(StartupError) as caught:
        Settings.from_environment({f"VLLM_{name}": value for name, value in wrong.items()} | {"STEADYHAND_MODEL": "x"})
    assert len(caught.value.problems) == len(told) + 1


def test_settings_do_not_show_a_key_or_a_header() -> None:
    environment = acme(BASE_URL="http://h", API_KEY=KEY, HEADERS="X-Key=GATE_KEY") | {"GATE_KEY": f"{KEY}-2"}
    settings = Settings.from_environment(environment)
    assert settings.providers["acme"].api_key == KEY
    assert settings.providers["acme"].headers == {"x-key": f"{KEY}-2"}
    assert KEY not in repr(settings)
    assert KEY not in str(settings)


def test_a_setting_that_is_nothing_counts_as_not_set() -> None:
    names = ("BASE_URL", "API_KEY", "API", "STREAMING", "HEADERS")
    empty = {f"{preset.prefix}_{name}": "" for preset in PRESETS.values() for name in names}
    assert provider_settings({**empty, "ACME_BASE_URL": ""}) == provider_settings({})


def readme_lines() -> list[tuple[str, list[str], dict[str, str]]]:
    """Of each line on a provider: its name, the models in it, and the environment it asks for."""
    table = README.partition("| provider | model | settings |\n|---|---|---|\n")[2].partition("\n\n")[0]
    lines = []
    for row in table.splitlines():
        provider, models, settings = (cell.strip() for cell in row.strip("|").split(" | "))
        pairs = (setting.partition("=") for setting in re.findall(r"`([A-Z_]+=[^`]+)`", settings))
        names = re.findall(r"`([a-z0-9_]+:[^`]+)`", models)
        lines.append((provider.strip(), names, {name: value for name, _, value in pairs}))
    return lines


@pytest.mark.parametrize("line", readme_lines(), ids=lambda line: line[0])
async def test_each_line_of_the_readme_is_all_a_provider_takes(line: tuple[str, list[str], dict[str, str]]) -> None:
    _, models, environment = line
    assert models
    for model in models:
        provider = model.partition(":")[0]
        async with loopback_client() as http:
            assert provider in providers_in(environment, http, agent_with(model))
        # The same line with a server of ours behind it: that address, this API.
        reached = provider_settings(environment)[provider]
        async with ModelServer([saying(reached.api, "Hi")]) as server:
            await asked({**environment, f"{reached.prefix}_BASE_URL": server.base_url}, model)
            (request,) = server.requests
        assert (request.json or {})["model"] == model.partition(":")[2]
        assert request.path == f"/v1{PATHS[reached.api]}"


def test_the_readme_names_every_preset_with_its_own_address() -> None:
    lines = readme_lines()
    assert [line[0] for line in lines] == [
        *("OpenAI", "Anthropic", "OpenRouter", "vLLM", "Ollama", "llama.cpp", "any other server")
    ]
    assert {model.partition(":")[0] for line in lines for model in line[1]} == {*PRESETS, "acme"}
    for _, models, environment in lines[:-1]:
        preset = PRESETS[models[0].partition(":")[0]]
        assert environment.get(f"{preset.prefix}_BASE_URL", preset.base_url) == preset.base_url
        assert (f"{preset.prefix}_API_KEY" in environment) == preset.needs_key
    for setting in re.findall(r"\| `<NAME>_([A-Z_]+)` \|", README):
        assert setting in ("BASE_URL", "API_KEY", "API", "STREAMING", "HEADERS")
