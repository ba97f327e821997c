"""The settings that a tool was given, kept out of everything it says."""

from collections.abc import Mapping

from pydantic import JsonValue

from contracts.outcomes import ToolOutcome
from contracts.tools import ToolContract

# Shorter settings are words like "true" or "dev": replacing them would garble text and hide nothing.
SECRET_MIN_LENGTH = 8
_MARK = "***"


class ToolSecrets:
    """Hides values. A text has to pass before it is cut: half a secret would not be found any more."""

    def __init__(self, values: Mapping[str, str]) -> None:
        long_enough = {value for value in values.values() if len(value) >= SECRET_MIN_LENGTH}
        # The longest first: one may be the beginning of another.
        self._values = sorted(long_enough, key=len, reverse=True)

    @classmethod
    def of(cls, contract: ToolContract, settings: Mapping[str, str]) -> "ToolSecrets":
        """The settings that the contract names."""
        return cls({name: settings[name] for name in contract.settings})

    def hidden(self, text: str) -> str:
        """The text with `***` for each of the values."""
        for value in self._values:
            text = text.replace(value, _MARK)
        return text

    def hidden_in(self, value: JsonValue) -> JsonValue:
        """As `hidden`, for every text in the value, keys included."""
        match value:
            case str():
                return self.hidden(value)
            case dict():
                return {self.hidden(key): self.hidden_in(item) for key, item in value.items()}
            case list() | tuple():
                return [self.hidden_in(item) for item in value]
        return value

    def hidden_in_outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        """As `hidden`, for everything in the outcome."""
        if not self._values:
            return outcome
        return ToolOutcome.model_validate(self.hidden_in(outcome.model_dump(mode="python")))


NO_SECRETS = ToolSecrets({})
