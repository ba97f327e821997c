"""What the environment says, read once at the start."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from temporalio.common import WorkerDeploymentVersion

from contracts.models import MODEL_FORM
from runtime.provider_settings import ProviderSettings, preset_mistakes, provider_settings

DEFAULT_TASK_QUEUE = "agents"

_MODEL = re.compile(r"[a-z0-9_]+:\S(?:.*\S)?")


class StartupError(Exception):
    """The process cannot start as it is set up. Each problem is one line: what is wrong, and what to do about it."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Settings:
    """The project's own settings. Those of the connection (`TEMPORAL_*`) are read by Temporal's client.

    `model` overrides the model of every served agent. `providers` are by the name before the colon in a model. `models`
    is the file with the table of models, None for the one that comes along. `deployment` and `build_id` name the
    worker's version: both or neither. A variable that is set to nothing counts as not set.
    """

    model: str | None = None
    task_queue: str = DEFAULT_TASK_QUEUE
    providers: Mapping[str, ProviderSettings] = field(default_factory=lambda: provider_settings({}))
    # Either may hold a secret.
    deltas_url: str | None = field(default=None, repr=False)
    deltas_token: str | None = field(default=None, repr=False)
    models: Path | None = None
    deployment: str | None = None
    build_id: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, *, task_queue: str | None = None) -> Self:
        """Settings from these variables (None: the process's own); `task_queue`, if given, overrides the variable.

        Raises `StartupError` with every mistake at once.
        """
        environment = os.environ if environment is None else environment
        settings = cls(
            model=environment.get("STEADYHAND_MODEL") or None,
            task_queue=task_queue or environment.get("STEADYHAND_TASK_QUEUE") or DEFAULT_TASK_QUEUE,
            providers=provider_settings(environment),
            deltas_url=environment.get("STEADYHAND_DELTAS_URL") or None,
            deltas_token=environment.get("STEADYHAND_DELTAS_TOKEN") or None,
            models=Path(models) if (models := environment.get("STEADYHAND_MODELS")) else None,
            deployment=environment.get("STEADYHAND_DEPLOYMENT") or None,
            build_id=environment.get("STEADYHAND_BUILD_ID") or None,
        )
        if mistakes := settings.mistakes():
            raise StartupError(*mistakes)
        return settings

    def mistakes(self) -> list[str]:
        """What cannot be right, one line each. Whether a key or a provider is needed depends on the served agents."""
        found = []
        if self.model is not None and not _MODEL.fullmatch(self.model):
            found.append(f"STEADYHAND_MODEL is {self.model!r}: {MODEL_FORM}")
        queue = self.task_queue
        if not _is_name(queue, 1000):
            found.append(
                f"the task queue (STEADYHAND_TASK_QUEUE or --task-queue) is {queue[:80]!r}: write a name of at most "
                f"1000 bytes, such as {DEFAULT_TASK_QUEUE}"
            )
        return found + self._version_mistakes() + preset_mistakes(self.providers)

    @property
    def version(self) -> WorkerDeploymentVersion | None:
        """What Temporal knows this worker's code as, None for a worker without a version."""
        if self.deployment is None or self.build_id is None:
            return None
        return WorkerDeploymentVersion(self.deployment, self.build_id)

    def _version_mistakes(self) -> list[str]:
        """A worker with a name that the server refuses would poll for ever and be given nothing."""
        deployment, build_id = self.deployment, self.build_id
        found = []
        if (deployment is None) != (build_id is None):
            unset = "STEADYHAND_BUILD_ID" if build_id is None else "STEADYHAND_DEPLOYMENT"
            found.append(f"{unset} is not set: a version is named by STEADYHAND_DEPLOYMENT and STEADYHAND_BUILD_ID")
        if deployment and (not _is_name(deployment, 255) or set(".:") & set(deployment) or deployment[:2] == "__"):
            found.append(
                f"STEADYHAND_DEPLOYMENT is {deployment[:80]!r}: write a name of at most 255 bytes without . and : that "
                "does not begin with __, such as refund-desk"
            )
        if build_id and not _is_name(build_id, 255):
            found.append(
                f"STEADYHAND_BUILD_ID is {build_id[:80]!r}: write a version of at most 255 bytes, such as "
                "2026-12-01 or a commit"
            )
        return found


def _is_name(text: str, max_bytes: int) -> bool:
    """Whether the server takes this as a name, and a person can read it as one."""
    return text.isprintable() and text == text.strip() and len(text.encode()) <= max_bytes


def tool_settings(named: Mapping[str, str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of the settings that tools name, from these variables (None: the process's own). `named` maps each to
    the tool that names it. Raises `StartupError` for those that are not set, by name only."""
    environment = os.environ if environment is None else environment
    missing = [f"tool {tool}: set {name}" for name, tool in named.items() if not environment.get(name)]
    if missing:
        raise StartupError(*missing)
    return {name: environment[name] for name in named}
