"""The table of models that a worker goes by, checked before anything is served."""

from activities.catalog import Catalog
from activities.model_table import BUILT_IN, ModelTable, ModelTableError
from contracts.models import no_price
from runtime.settings import Settings, StartupError


def model_table(settings: Settings, catalog: Catalog) -> ModelTable:
    """The table in the file that these settings name. Raises `StartupError` with the file and the field for one that
    cannot be read, and with a line for each served agent that does not fit what the table says of its models."""
    try:
        table = ModelTable.load(settings.models or BUILT_IN)
    except ModelTableError as error:
        remedy = "" if settings.models is None else "; STEADYHAND_MODELS names it"
        raise StartupError(f"{error}{remedy}") from None
    problems = []
    for agent in catalog.agents.values():
        try:
            completed = table.completed(agent)
        except ModelTableError as error:
            problems.append(str(error))
            continue
        if agent.max_cost_usd is not None:
            # Every run would be refused at its start.
            problems += [
                f"agent {agent.name!r}: max_cost_usd cannot be kept: {no_price(model)}" for model in completed.unpriced
            ]
    if problems:
        raise StartupError(*problems)
    return table
