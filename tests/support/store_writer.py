"""A process that writes to a store until it is killed; prints each name once its write has returned.

Usage: python store_writer.py PATH FIRST durable|plain
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import trio

from stretto.store import Store
from support.store_tables import SCHEMAS, add


async def main(path: Path, first: int, durable: bool) -> None:
    numbers = itertools.count(first)
    store = await Store.open(path, SCHEMAS)

    async def write_on() -> None:
        for number in numbers:
            await store.write(add(f"thing {number}", data=bytes(number % 3000)), durable)
            sys.stdout.write(f"thing {number}\n")
            sys.stdout.flush()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(write_on)


trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "durable")
