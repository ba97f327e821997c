"""A refund desk: an agent that looks up orders, checks the policy and, once a person has agreed, sends money back.

Copy this package to start your own agent, and serve it with `python worker.py --app <your module>`.
"""

from activities.tooling import tool
from contracts.agents import AgentSpec
from contracts.tools import ToolInvocation
from examples.refund_desk import shop


@tool(side_effect="read")
def find_order(order_id: str) -> shop.Order:
    """Look up an order: customer, item, total in cents, delivery and state."""
    return shop.order(order_id)


@tool(side_effect="read")
def check_refund_policy(order_id: str) -> shop.Verdict:
    """Whether an order may be refunded, and up to how many cents."""
    return shop.verdict(order_id)


@tool(side_effect="write", idempotency="idempotent_with_key", approval="always")
def refund_order(order_id: str, amount_cents: int, reason: str, invocation: ToolInvocation) -> shop.Payment:
    """Send money back to the customer of an order. A person decides first."""
    return shop.refund(invocation.idempotency_key, order_id, amount_cents, reason)


@tool(side_effect="write", idempotency="idempotent_with_key")
def notify_customer(order_id: str, message: str, invocation: ToolInvocation) -> shop.Mail:
    """Send a message to the customer of an order."""
    return shop.notify(invocation.idempotency_key, order_id, message)


refund_desk = AgentSpec(
    name="refund_desk",
    instructions=(
        "You work at the refund desk of an online shop. Look up the order, then check the refund policy. If the policy "
        "allows it, refund the full amount with refund_order; a person approves or denies that call. After a refund, "
        "tell the customer with notify_customer. If the policy or the person says no, do not refund and do not notify. "
        "End with one short sentence that says what was done."
    ),
    # Plays a script, so that the demo needs no key. For a real model set STEADYHAND_MODEL=openai:gpt-4.1-mini.
    model="scripted:examples/refund_desk/script.json",
    tools=(find_order, check_refund_policy, refund_order, notify_customer),
    max_rounds=8,
    max_tool_calls=12,
)
