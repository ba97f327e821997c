"""Adding a tool to the example touches one file: the module that the agent is written in."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from activities.catalog import Catalog
from examples.refund_desk import shop
from tests.support.harness import CHECKOUT, Harness, calls, says, script

EXAMPLE = CHECKOUT / "examples" / "refund_desk" / "__init__.py"
NEW_TOOL = '''
@tool(side_effect="read")
def order_total(order_id: str) -> int:
    """What an order costs, in cents."""
    return shop.order(order_id).total_cents


refund_desk = AgentSpec('''


def module(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("my_desk", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


async def test_a_tool_written_into_the_agents_module_is_served(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUND_DESK_DATABASE", str(tmp_path / "shop.db"))
    text = EXAMPLE.read_text()
    assert text.count("\nrefund_desk = AgentSpec(") == text.count("tools=(find_order,") == 1
    text = text.replace("\nrefund_desk = AgentSpec(", NEW_TOOL).replace(
        "tools=(find_order,", "tools=(order_total, find_order,"
    )
    agent = Catalog.from_modules([module(tmp_path / "my_desk.py", text)], model="scripted:main").agents["refund_desk"]
    replies = script(calls(("order_total", {"order_id": "ord_1042"})), says("It cost 89.90."))
    async with harness.worker(agent, scripts={"main": replies}):
        result = await (await harness.start({"agent": "refund_desk", "prompt": "What did it cost?"})).result()
    assert result.tool_results[0].text == str(shop.order("ord_1042").total_cents) == "8990"
