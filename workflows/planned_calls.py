"""A call that may run, with what it runs under."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.approvals import action_digest
from contracts.messages import ToolCall
from contracts.pointers import NotThere, at, scalar_text
from contracts.tools import ToolContract


@dataclass(frozen=True)
class PlannedCall:
    """A call with the contract it runs under."""

    call: ToolCall
    contract: ToolContract
    expected_resource_version: str | None

    @property
    def action_digest(self) -> str:
        """What an approval of this call is bound to."""
        return action_digest(self.contract.name, self.contract.version, self.call.arguments)


def expected_version(contract: ToolContract, arguments: JsonValue) -> str | None:
    """The resource version that a call expects. Raises ValueError where its contract requires one and it gives none."""
    rule = contract.resource_version
    if rule is None:
        return None
    try:
        expected = scalar_text(at(rule.argument, arguments))
    except NotThere:
        if rule.require_expected:
            raise ValueError(f"tool invocation requires an expected resource version at {rule.argument}") from None
        return None
    if expected is None and rule.require_expected:
        raise ValueError(f"expected resource version must be a scalar value, at {rule.argument}")
    return expected
