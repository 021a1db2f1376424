"""The store: one SQLite file in the state directory, with one writer. Each room owns its tables in it."""

from stretto.store.clock import MICROSECONDS, age_us, now_us
from stretto.store.opening import FILE_NAME
from stretto.store.schema import Check, Schema, Step
from stretto.store.store import Store
from stretto.store.upkeep import (
    BackupReport,
    CheckReport,
    VacuumReport,
    back_up,
    check,
    export,
    vacuum,
)

__all__ = [
    "FILE_NAME",
    "MICROSECONDS",
    "BackupReport",
    "Check",
    "CheckReport",
    "Schema",
    "Step",
    "Store",
    "VacuumReport",
    "age_us",
    "back_up",
    "check",
    "export",
    "now_us",
    "vacuum",
]
