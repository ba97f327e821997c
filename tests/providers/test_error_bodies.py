"""What providers say is wrong, told apart: money, rate, load, length, content and keys. Bodies are shaped as each
provider documents them, or as they were recorded."""

import pytest
from pydantic import JsonValue

from activities.providers.interface import ModelErrorType
from tests.providers.asking import failed
from tests.providers.model_server import Response

Case = tuple[int, JsonValue]


def openai(message: str, type: str | None, code: str | None) -> JsonValue:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def anthropic(type: str, message: str) -> JsonValue:
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_1"}


def google(status: str, code: int, message: str) -> JsonValue:
    return [{"error": {"code": code, "message": message, "status": status}}]


def mistral(message: str, type: str, code: str) -> JsonValue:
    return {"object": "error", "message": message, "type": type, "param": None, "code": code}


def openrouter(code: int, message: str, **metadata: JsonValue) -> JsonValue:
    return {"error": {"code": code, "message": message, "metadata": metadata}, "user_id": "user_1"}


NO_MONEY: list[Case] = [
    (
        429,
        openai("You exceeded your current quota, please check your plan", "insufficient_quota", "insufficient_quota"),
    ),
    (429, openai("Billing hard limit has been reached", "invalid_request_error", "billing_hard_limit_reached")),
    (429, openai("Your account is not active", "billing_not_active", "billing_not_active")),
    (400, anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API.")),
    (402, anthropic("billing_error", "There is an issue with your billing.")),
    (402, openai("Insufficient Balance", "unknown_error", "invalid_request_error")),
    (402, openrouter(402, "This request requires more credits, or fewer max_tokens.")),
    (402, {"detail": "Payment required"}),
    (402, {"error": "You have exceeded your monthly included credits for Inference Providers."}),
    (403, {"code": "permission", "error": "Your team has either used all available credits or reached its limit."}),
    (429, openai("Your account is suspended due to insufficient balance", "exceeded_current_quota_error", None)),
    (429, {"error": {"code": "1113", "message": "Insufficient balance or no resource package. Please recharge."}}),
]
TOO_FAST: list[Case] = [
    (
        429,
        openai("Rate limit reached for gpt-4.1 in organization org-1 on requests", "requests", "rate_limit_exceeded"),
    ),
    (429, openai("Requests have exceeded token rate limit. Please retry after 20 seconds.", None, "429")),
    (429, {"error": {"code": "RateLimitReached", "message": "Your requests have exceeded rate limit."}}),
    (429, anthropic("rate_limit_error", "This request would exceed your organization's rate limit.")),
    (429, google("RESOURCE_EXHAUSTED", 429, "You exceeded your current quota, please check your plan and billing.")),
    (429, mistral("Rate limit exceeded", "rate_limited", "1300")),
    (429, mistral("Service tier capacity exceeded for this model.", "service_tier_capacity_exceeded", "3505")),
    (429, openrouter(429, "Provider returned error", raw="google/gemini is temporarily rate-limited upstream.")),
    (429, "Too Many Requests"),
]
OVERLOADED: list[Case] = [
    (503, openai("The engine is currently overloaded, please try again later", "server_error", None)),
    (529, anthropic("overloaded_error", "Overloaded")),
    (504, anthropic("timeout_error", "The request timed out.")),
    (503, google("UNAVAILABLE", 503, "The model is overloaded. Please try again later.")),
    (498, openai("Flex tier capacity exceeded", "capacity_exceeded", "capacity_exceeded")),
    (503, openai("over capacity and requests may not be satisfied", "internal_server_error", None)),
    (503, "Server Overloaded"),
    (502, openrouter(502, "Your chosen model is down")),
    (408, openrouter(408, "Your request timed out")),
]
TOO_LONG: list[Case] = [
    (
        400,
        openai(
            "This model's maximum context length is 8192 tokens.", "invalid_request_error", "context_length_exceeded"
        ),
    ),
    (
        429,
        openai(
            "Request too large for gpt-5 on tokens per min (TPM): Limit 10, Requested 20.",
            "tokens",
            "rate_limit_exceeded",
        ),
    ),
    (
        413,
        openai(
            "Request too large for model `m` on tokens per minute (TPM): Limit 6000", "tokens", "rate_limit_exceeded"
        ),
    ),
    (400, openai("Please reduce the length of the messages.", "invalid_request_error", "context_length_exceeded")),
    (400, anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")),
    (400, anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + 20000")),
    (400, google("INVALID_ARGUMENT", 400, "The input token count (1200000) exceeds the maximum number of tokens")),
    (400, mistral("Prompt contains 40015 tokens, too large for model with 32768 maximum context length", "x", "3051")),
    (400, openrouter(400, "Provider returned error", raw='{"error":{"message":"maximum context length is 8192"}}')),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
            }
        },
    ),
]
REFUSED: list[Case] = [
    (
        400,
        openai(
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            "invalid_request_error",
            "invalid_prompt",
        ),
    ),
    (400, openai("Rejected by the safety system.", "invalid_request_error", "content_policy_violation")),
    (
        400,
        openai(
            "The response was filtered due to the prompt triggering Azure's content management policy.",
            None,
            "content_filter",
        ),
    ),
    (400, anthropic("invalid_request_error", "Output blocked by content filtering policy")),
    (403, openrouter(403, "Your chosen model requires moderation and your input was flagged", reasons=["violence"])),
    (403, {"code": "permission", "error": "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"}),
    (400, openai("Content Exists Risk", "invalid_request_error", "invalid_request_error")),
]
KEY_REFUSED: list[Case] = [
    (401, openai("Incorrect API key provided: sk-...", "invalid_request_error", "invalid_api_key")),
    (401, {"error": {"code": "401", "message": "Access denied due to invalid subscription key"}}),
    (401, anthropic("authentication_error", "invalid x-api-key")),
    (403, anthropic("permission_error", "Your API key does not have permission to use the specified resource.")),
    (400, google("INVALID_ARGUMENT", 400, "API key not valid. Please pass a valid API key.")),
    (401, {"detail": "Invalid API Key"}),
    (401, openai("Authentication Fails, Your api key is invalid", "authentication_error", "invalid_request_error")),
    (401, openrouter(401, "No auth credentials found")),
]
REQUEST_IS_WRONG: list[Case] = [
    (404, openai("The model `x` does not exist", "invalid_request_error", "model_not_found")),
    (404, {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}}),
    (413, anthropic("request_too_large", "Request exceeds the maximum size")),
    (422, mistral("Input should be a valid string", "invalid_request_error", "3210")),
    (400, openrouter(400, "An entry of messages is invalid: unsupported role")),
    (404, openrouter(404, "No endpoints found that support tool use")),
    (400, google("FAILED_PRECONDITION", 400, "User location is not supported for the API use.")),
]


@pytest.mark.parametrize(
    ("case", "type", "retryable"),
    [
        *((case, "ModelUnavailable", False) for case in NO_MONEY),
        *((case, "ModelUnavailable", True) for case in TOO_FAST),
        *((case, "ModelUnavailable", True) for case in OVERLOADED),
        *((case, "ContextWindowExceeded", False) for case in TOO_LONG),
        *((case, "ModelRefused", False) for case in REFUSED),
        *((case, "ModelAuthentication", False) for case in KEY_REFUSED),
        *((case, "ModelBadRequest", False) for case in REQUEST_IS_WRONG),
    ],
)
async def test_what_is_wrong_is_told_apart(case: Case, type: ModelErrorType, retryable: bool) -> None:
    status, body = case
    failure = await failed(Response.of(body, status))
    assert (failure.type, failure.retryable) == (type, retryable)
    assert ("no quota left for OPENAI_API_KEY" in str(failure)) == (case in NO_MONEY)
    assert ("check the key in OPENAI_API_KEY" in str(failure)) == (case in KEY_REFUSED)


async def test_money_that_other_requests_hold_is_waited_for() -> None:
    """OpenRouter, "Errors and debugging": only a 402 with this header will pass."""
    body = Response.of(openrouter(402, "Other requests hold what is left of your credits")).body
    failure = await failed(Response(402, {"retry-after": "3"}, body))
    assert (failure.type, failure.retryable, failure.retry_after) == ("ModelUnavailable", True, 3.0)


@pytest.mark.parametrize(("told", "retryable"), [("false", False), ("true", True), ("", True)])
async def test_a_provider_that_says_not_to_ask_again_is_not_asked_again(told: str, retryable: bool) -> None:
    failure = await failed(Response(429, {"x-should-retry": told, "retry-after": "41"}, b"{}"))
    assert (failure.type, failure.retryable) == ("ModelUnavailable", retryable)
    assert failure.retry_after == (41.0 if retryable else None)
