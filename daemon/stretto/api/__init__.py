"""The public HTTP routes."""

from stretto.api.answers import AnswerRoute
from stretto.api.app import Routes, public_app, shared_routes
from stretto.api.bodies import read_checked
from stretto.api.cache import require_cache
from stretto.api.caller import caller_of
from stretto.api.endpoint import Endpoint
from stretto.api.envelopes import refusal_body
from stretto.api.key_guard import KeyGuard
from stretto.api.memory import memory_routes_at, require_memory
from stretto.api.mounts import MOUNTS
from stretto.api.ports import AnswerPort, EmbedderPort, HealthPort, ModelPort, PipelinePort, RerankerPort
from stretto.api.query import query_of, whole_number
from stretto.api.reading import require_json
from stretto.api.replies import ErrorReplies, RequestTag, send_error, send_json
from stretto.api.retries import Retries

__all__ = [
    "MOUNTS",
    "AnswerPort",
    "AnswerRoute",
    "EmbedderPort",
    "Endpoint",
    "ErrorReplies",
    "HealthPort",
    "KeyGuard",
    "ModelPort",
    "PipelinePort",
    "RequestTag",
    "RerankerPort",
    "Retries",
    "Routes",
    "caller_of",
    "memory_routes_at",
    "public_app",
    "query_of",
    "read_checked",
    "refusal_body",
    "require_cache",
    "require_json",
    "require_memory",
    "send_error",
    "send_json",
    "shared_routes",
    "whole_number",
]
