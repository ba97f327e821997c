"""The search attributes of runs, registered where the server lets us."""

import logging
from datetime import timedelta

from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from contracts.search_attributes import SEARCH_ATTRIBUTES

# A server that cannot be asked must not keep the worker from starting.
_TIMEOUT = timedelta(seconds=10)

log = logging.getLogger("steadyhand.search")


async def registered_search_attributes(client: Client) -> frozenset[str]:
    """Register what the client's namespace lacks, and return the names that runs may use: an attribute that is not
    there, or is there with another type, would stop a run's workflow task each time it is set.

    Where the server does not allow it, runs go without, and the log says so once, with the command that helps.
    """
    wanted = {key.name: key.indexed_value_type for key in SEARCH_ATTRIBUTES}
    try:
        # Those that are there already are left as they are.
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes={name: kind.value for name, kind in wanted.items()},  # type: ignore[misc]
            ),
            timeout=_TIMEOUT,
        )
    except RPCError as error:
        log.warning("search attributes were not registered (%s): %s", error.message, _remedy())
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), timeout=_TIMEOUT
        )
    except RPCError as error:
        log.warning("search attributes cannot be listed (%s): runs are not searchable by them", error.message)
        return frozenset()
    there = {name for name, kind in wanted.items() if listed.custom_attributes.get(name) == kind.value}
    if missing := sorted(wanted.keys() - there):
        log.warning("runs go without the search attributes %s, missing or of another type", ", ".join(missing))
    return frozenset(there)


def _remedy() -> str:
    kinds = ((key.name, _type_name(key.indexed_value_type.name)) for key in SEARCH_ATTRIBUTES)
    options = " ".join(f"--name {name} --type {kind}" for name, kind in kinds)
    return f"temporal operator search-attribute create {options}"


def _type_name(constant: str) -> str:
    """KEYWORD_LIST as the CLI writes it."""
    return "".join(word.capitalize() for word in constant.split("_"))
