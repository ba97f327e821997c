from dataclasses import dataclass

from activities.providers.interface import CompletionRequest
from activities.token_counts import Count
from contracts.models import ContextBudget


class CountFailed(Exception): ...


class WindowExceeded(Exception): ...


@dataclass(frozen=True)
class Fitted:
    request: CompletionRequest
    input_tokens: int
    reserved_output: int


def fit(request: CompletionRequest, budget: ContextBudget, count: Count) -> Fitted:
    text = request.instructions + "".join(m.text for m in request.messages)
    return Fitted(request, count(text), budget.reserved_output or request.settings.max_output_tokens or 1024)
