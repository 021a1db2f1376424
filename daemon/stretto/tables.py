"""Every room's tables in the store, in the order in which they are made.

The list is the same whatever features are on: a file that has more than this was written by a newer version.
"""

from __future__ import annotations

from stretto.cache import SCHEMA as CACHE
from stretto.ledger import SCHEMA as LEDGER
from stretto.memory import SCHEMA as MEMORY
from stretto.store import Schema

SCHEMAS: tuple[Schema, ...] = (MEMORY, CACHE, LEDGER)
