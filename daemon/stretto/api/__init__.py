"""The public HTTP routes."""

from stretto.api.answers import AnswerRoute, require_json
from stretto.api.app import Routes, public_app, shared_routes
from stretto.api.caller import caller_of
from stretto.api.ports import AnswerPort, EmbedderPort, HealthPort, ModelPort, PipelinePort
from stretto.api.replies import ErrorReplies, RequestTag, send_error, send_json

__all__ = [
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
    "require_json",
    "send_error",
    "send_json",
    "shared_routes",
]
