"""Measuring servers over HTTP, side by side. Needs the ``bench`` extra."""

from stretto.bench.process import Restartable, Server, peak_rss_bytes, started
from stretto.bench.prompts import Prompts
from stretto.bench.report import document, draw, table_rows
from stretto.bench.rounds import Results, Row, Target, calibrate, run_rounds
from stretto.bench.run import Plan, ServerPlan, measure
from stretto.bench.wire import BenchError, Sample, Wire, model_of
from stretto.bench.works import WORKS, Figure, Trial, Work

__all__ = [
    "WORKS",
    "BenchError",
    "Figure",
    "Plan",
    "Prompts",
    "Restartable",
    "Results",
    "Row",
    "Sample",
    "Server",
    "ServerPlan",
    "Target",
    "Trial",
    "Wire",
    "Work",
    "calibrate",
    "document",
    "draw",
    "measure",
    "model_of",
    "peak_rss_bytes",
    "run_rounds",
    "started",
    "table_rows",
]
