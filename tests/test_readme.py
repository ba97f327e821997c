"""The README's agent is a whole one: it is served as it stands there, and runs."""

import re
import sys
from pathlib import Path
from types import ModuleType

from activities.catalog import Catalog
from contracts.models import Price
from tests.support.harness import Harness, calls, pending_approval, says, script

MODELS_PAGE = (Path(__file__).resolve().parents[1] / "docs" / "models.md").read_text()
TOOLS_PAGE = (Path(__file__).resolve().parents[1] / "docs" / "tools.md").read_text()
README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def readme_agent() -> ModuleType:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) < 30
    module = ModuleType("readme_agent")
    sys.modules["readme_agent"] = module
    exec(compile(code, "README.md", "exec"), module.__dict__)
    return module


async def test_the_agent_of_the_readme_runs(harness: Harness) -> None:
    module = readme_agent()
    catalog = Catalog.from_modules([module], model="scripted:main")
    replies = script(
        calls(("in_stock", {"item": "sofa"})),
        calls(("in_stock", {"item": "lamp"})),
        calls(("order_item", {"item": "lamp"})),
        says("One lamp is ordered."),
    )
    async with harness.worker(*catalog.agents.values(), scripts={"main": replies}):
        run = await harness.start({"agent": "buyer", "prompt": "Buy a sofa, or else a lamp."})
        request = await pending_approval(run)
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )
        result = await run.result()
    assert result.text == "One lamp is ordered."
    assert "there is no sofa; there are: lamp, chair" in result.tool_results[0].text
    assert list(module.ORDERS.values()) == ["ordered one lamp"]


def test_every_name_the_readme_gives_exists() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).resolve().parents[1] / path).exists(), path


async def test_the_bank_of_the_tools_page_runs(harness: Harness) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TOOLS_PAGE, re.DOTALL)
    module = ModuleType("tools_page")
    sys.modules["tools_page"] = module
    exec(compile(code, "docs/tools.md", "exec"), module.__dict__)
    catalog = Catalog.from_modules([module], model="scripted:main")
    replies = script(calls(("transfer", {"amount": 40})), calls(("balance", {})), says("960 are left."))
    async with harness.serving(catalog, {"main": replies}, {"BANK_KEY": "key-of-the-bank"}):
        run = await harness.start({"agent": "teller", "prompt": "Send 40."})
        request = await pending_approval(run)
        await run.signal(
            "resolve_approval", {"approval_id": request.approval_id, "resolution": "approved", "by": "ann"}
        )
        result = await run.result()
    assert [answered.text for answered in result.tool_results] == ["sent 40", "960"]
    assert [effect.state for effect in result.effects] == ["done"]


async def test_the_clerk_of_the_models_page_runs(harness: Harness) -> None:
    module = ModuleType("models_page")
    sys.modules["models_page"] = module
    blocks = re.findall(r"```python\n(.*?)```", MODELS_PAGE, re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        exec(compile(code, "docs/models.md", "exec"), module.__dict__)
    catalog = Catalog.from_modules([module])
    assert [counter.models for counter in catalog.counters] == ["openai:"]
    clerk = catalog.agents["clerk"].model_copy(
        update={"model": "scripted:main", "fallback_models": (), "prices": {"scripted:main": Price(input=1, output=1)}}
    )
    replies = {"main": script(says("It is twelve."), says('{"total": 12}'))}
    async with harness.worker(clerk, scripts=replies, hooks=list(catalog.hooks.values())):
        result = await (await harness.start({"agent": "clerk", "prompt": "How much is invoice 7?"})).result()
    assert result.output == {"total": 12}
