"""The table of models that a worker goes by, checked before anything is served."""

from activities.catalog import Catalog
from activities.model_table import BUILT_IN, ModelTable, ModelTableError
from runtime.settings import Settings, StartupError


def model_table(settings: Settings, catalog: Catalog) -> ModelTable:
    """The table in the file that these settings name. Raises `StartupError` with the file and the field for one that
    cannot be read, and with a line for each served agent that does not fit what the table says of its model."""
    try:
        table = ModelTable.load(settings.models or BUILT_IN)
    except ModelTableError as error:
        remedy = "" if settings.models is None else "; STEADYHAND_MODELS names it"
        raise StartupError(f"{error}{remedy}") from None
    problems = []
    for agent in catalog.agents.values():
        try:
            table.completed(agent)
        except ModelTableError as error:
            problems.append(str(error))
    if problems:
        raise StartupError(*problems)
    return table
