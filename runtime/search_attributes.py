"""The search attributes of runs in a namespace: registered where the server lets us, and which of them are there."""

import logging
from collections.abc import Mapping
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from contracts.search_attributes import ALL, AnyKey

_TIMEOUT = timedelta(seconds=5)

log = logging.getLogger("steadyhand.search_attributes")


async def register(client: Client) -> frozenset[str]:
    """Register those that the namespace lacks; the names of all that can be set afterwards.

    A server that does not let us, or has no room for more, is no error, since runs do without: it is told in one line
    of the log. Several workers may do this at the same time.
    """
    registered = await _registered(client)
    if registered is None:
        return frozenset()
    missing = {key.name: _type(key) for key in ALL if key.name not in registered}
    if missing:
        request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        try:
            await client.operator_service.add_search_attributes(request, timeout=_TIMEOUT)
        except RPCError as error:
            _tell(client, f"could not be registered ({_reason(error)})")
            return _usable(registered)
        # Listed again: one that got another type in the meantime is left as it is, without a word.
        registered = await _registered(client) or {}
    if others := sorted(key.name for key in ALL if registered.get(key.name, _type(key)) != _type(key)):
        _tell(client, f"are there with another type: {', '.join(others)}")
    return _usable(registered)


async def _registered(client: Client) -> Mapping[str, int] | None:
    """The custom search attributes of the namespace, their types by name. None, which is logged, where the server does
    not tell."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        reply = await client.operator_service.list_search_attributes(request, timeout=_TIMEOUT)
    except RPCError as error:
        _tell(client, f"cannot be listed ({_reason(error)})")
        return None
    return dict(reply.custom_attributes)


def _usable(registered: Mapping[str, int]) -> frozenset[str]:
    return frozenset(key.name for key in ALL if registered.get(key.name) == _type(key))


def _type(key: AnyKey) -> IndexedValueType.ValueType:
    # The SDK's own numbers are the server's.
    return IndexedValueType.ValueType(int(key.indexed_value_type))


def _tell(client: Client, what: str) -> None:
    log.warning("search attributes of namespace %r %s: runs go without them", client.namespace, what)


def _reason(error: RPCError) -> str:
    return f"{error.status.name}: {error.message.splitlines()[0] if error.message else 'no reason given'}"
