"""What the context budget costs: the time to fit a conversation of 10,000 messages, as a ratio to writing it as JSON.

.venv/bin/python -m benchmarks.window
"""

import json
import time
from collections.abc import Callable

from activities.providers.interface import CompletionRequest
from activities.token_counts import counter_for
from activities.window import fit
from contracts.messages import Message, ToolCall
from contracts.models import ContextBudget
from contracts.tools import ToolContract

MESSAGES = 10_000
RESULT_BYTES = 2_000
# None: only counted. The others: nothing gives way, results are shortened, messages are left out as well.
WINDOWS = (None, 10_000_000, 1_000_000, 50_000)
REPEATS = 5
LOOK = ToolContract(name="look", description="Looks.", input_schema={"type": "object"}, side_effect="read")


def conversation(messages: int) -> tuple[Message, ...]:
    """One prompt, then rounds of one call."""
    rounds: list[Message] = [Message(role="user", text="Find the one that is broken.")]
    for number in range(messages // 2):
        call = ToolCall(call_id=f"call_{number}", tool="look", arguments={"place": f"shelf {number}", "deep": True})
        rounds.append(Message(role="assistant", text="Looking further.", tool_calls=(call,)))
        rounds.append(Message(role="tool", call_id=call.call_id, text="nothing " * (RESULT_BYTES // 8)))
    return tuple(rounds)


def seconds(work: Callable[[], object]) -> float:
    """Processor time, the best of some repeats."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Print a line a window, and what twice the messages cost."""
    messages = conversation(MESSAGES)
    count = counter_for("openai:gpt-4.1")
    as_json = seconds(lambda: json.dumps([message.model_dump(mode="json") for message in messages]))
    print(f"{len(messages)} messages as JSON: {as_json * 1000:.0f} ms")
    for window in WINDOWS:
        request = CompletionRequest("gpt-4.1", "Be brief.", messages, (LOOK,))
        budget = ContextBudget(window=window)
        took = seconds(lambda request=request, budget=budget: fit(request, budget, count))  # type: ignore[misc]
        found = fit(request, budget, count)
        print(
            f"window {window}: {took * 1000:.0f} ms, {took / as_json:.2f} times JSON; {found.input_tokens} tokens, "
            f"{found.shortened} results shortened, {found.left_out} messages left out"
        )
    double = CompletionRequest("gpt-4.1", "Be brief.", conversation(2 * MESSAGES), (LOOK,))
    smallest = ContextBudget(window=WINDOWS[-1])
    print(f"twice the messages: {seconds(lambda: fit(double, smallest, count)) / took:.1f} times that")


if __name__ == "__main__":
    main()
