"""The connection to Temporal, set up as every Temporal tool is: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles, TLS."""

import asyncio
from collections.abc import Mapping

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from runtime.converter import data_converter
from runtime.settings import StartupError

DEFAULT_ADDRESS = "localhost:7233"
DEFAULT_NAMESPACE = "default"

_TIMEOUT_SECONDS = 8.0


async def connect(environment: Mapping[str, str] | None = None) -> Client:
    """A client for the server and namespace that these variables (or the process's own) and Temporal's profiles name.

    Raises `StartupError`, within seconds, when the server cannot be reached, does not know the namespace or does not
    accept the credentials.
    """
    config = _load_config(environment)
    address = config.get("target_host") or DEFAULT_ADDRESS
    namespace = config.get("namespace") or DEFAULT_NAMESPACE
    if "://" in address:
        raise StartupError(f"TEMPORAL_ADDRESS is {address!r}: write host:port, without a scheme")
    config["target_host"], config["namespace"] = address, namespace
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            client = await Client.connect(**config, data_converter=data_converter)
            await check_namespace(client)
    except TimeoutError:
        raise StartupError(
            f"no Temporal server answered at {address} within {_TIMEOUT_SECONDS:g} s: check TEMPORAL_ADDRESS"
        ) from None
    except RPCError as error:
        raise StartupError(_explain_refusal(error, address, namespace)) from None
    except (RuntimeError, ValueError) as error:
        raise StartupError(_explain_no_connection(error, address, bool(config.get("tls")))) from None
    return client


async def check_namespace(client: Client) -> None:
    """Ask the server for the client's namespace. Raises `RPCError` if it does not have it or does not tell."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    await client.workflow_service.describe_namespace(request)


def _load_config(environment: Mapping[str, str] | None) -> ClientConnectConfig:
    try:
        return ClientConfig.load_client_connect_config(override_env_vars=environment)
    except (RuntimeError, OSError) as error:
        # A parse error of TOML spans lines and quotes the file, which may hold a key: its first line tells enough.
        raise StartupError(f"Temporal's client configuration cannot be used: {_first_line(error)}") from None


def _explain_refusal(error: RPCError, address: str, namespace: str) -> str:
    match error.status:
        case RPCStatusCode.NOT_FOUND:
            return (
                f"the Temporal server at {address} has no namespace {namespace!r}: set TEMPORAL_NAMESPACE, or "
                f"create it with `temporal operator namespace create --namespace {namespace}`"
            )
        case RPCStatusCode.UNAUTHENTICATED | RPCStatusCode.PERMISSION_DENIED:
            return (
                f"the Temporal server at {address} does not accept the credentials for namespace {namespace!r}: check "
                "TEMPORAL_API_KEY or the TLS certificate"
            )
    return f"the Temporal server at {address} did not describe namespace {namespace!r}: {_first_line(error)}"


def _explain_no_connection(error: RuntimeError | ValueError, address: str, tls: bool) -> str:
    text = str(error)
    if "Unauthenticated" in text or "PermissionDenied" in text:
        return f"the Temporal server at {address} does not accept the credentials: check TEMPORAL_API_KEY"
    hint = "start one with `temporal server start-dev`, use --dev-server, or set TEMPORAL_ADDRESS"
    if "ConnectionRefused" in text:
        return f"no Temporal server listens at {address}: {hint}"
    if tls:
        hint = "an API key or a certificate is set, so the server has to speak TLS"
    return f"cannot connect to a Temporal server at {address} ({_first_line(error)}): {hint}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
