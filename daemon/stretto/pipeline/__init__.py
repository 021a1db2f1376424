"""The walk of a request, stage by stage."""

from stretto.pipeline.admission import Admission
from stretto.pipeline.answer import Answer
from stretto.pipeline.billing import Bill, Billing
from stretto.pipeline.health import Health
from stretto.pipeline.pipeline import Pipeline, draining_error
from stretto.pipeline.request_log import RequestLog
from stretto.pipeline.served import ServedModel
from stretto.pipeline.served_judge import ServedJudge
from stretto.pipeline.tokens import Tokens

__all__ = [
    "Admission",
    "Answer",
    "Bill",
    "Billing",
    "Health",
    "Pipeline",
    "RequestLog",
    "ServedJudge",
    "ServedModel",
    "Tokens",
    "draining_error",
]
