"""The public HTTP routes."""

from stretto.api.answers import AnswerRoute
from stretto.api.app import Routes, public_app, shared_routes
from stretto.api.caller import caller_of
from stretto.api.envelopes import refusal_body
from stretto.api.mounts import MOUNTS
from stretto.api.ports import AnswerPort, EmbedderPort, HealthPort, ModelPort, PipelinePort
from stretto.api.reading import require_json
from stretto.api.replies import ErrorReplies, RequestTag, send_error, send_json

__all__ = [
    "MOUNTS",
    "AnswerPort",
    "AnswerRoute",
    "EmbedderPort",
    "ErrorReplies",
    "HealthPort",
    "ModelPort",
    "PipelinePort",
    "RequestTag",
    "Routes",
    "caller_of",
    "public_app",
    "refusal_body",
    "require_json",
    "send_error",
    "send_json",
    "shared_routes",
]
