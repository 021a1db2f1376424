"""The public HTTP routes."""

from stretto.api.app import Routes, public_app, shared_routes
from stretto.api.chat import require_json
from stretto.api.ports import AnswerPort, HealthPort, ModelPort, PipelinePort
from stretto.api.replies import ErrorReplies, RequestTag, send_error, send_json

__all__ = [
    "AnswerPort",
    "ErrorReplies",
    "HealthPort",
    "ModelPort",
    "PipelinePort",
    "RequestTag",
    "Routes",
    "public_app",
    "require_json",
    "send_error",
    "send_json",
    "shared_routes",
]
