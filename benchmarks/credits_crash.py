"""Kill a daemon that bills, many times at random moments under load, and look at its books after each time.

    python benchmarks/credits_crash.py --kills 200

Seven callers ask for answers (whole and streamed) and top keys up; the daemon gets kill -9 at a random moment, is started again on the same
store, and must then have everything that was acknowledged, once, with nothing held, and a journal that sums to zero. The first breach ends
the run with a traceback; the directory is kept then.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.ledger_crash import House

LATEST_S = 0.3


def main() -> int:
    """Run, and print what was done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="stretto-credits-"))
    print(f"directory {directory}", flush=True)
    began = time.monotonic()
    counts = {"requests": 0, "paid": 0, "acknowledged": 0, "topups": 0}
    with House(directory, options.seed) as house:
        daemon = house.start()
        for kill in range(1, options.kills + 1):
            house.kill_under_load(daemon, moment_s=house.draw.uniform(0, LATEST_S))
            daemon = house.start()
            house.settle_doubts(daemon)
            counts = house.require_good_books(daemon)
            if kill % 10 == 0 or kill == options.kills:
                print(f"{kill} kills, {time.monotonic() - began:.0f} s: {counts}", flush=True)
        status = daemon.stop()
    shutil.rmtree(directory)
    unseen = counts["paid"] - counts["acknowledged"]
    released = counts["requests"] - counts["paid"]
    print(
        f"{options.kills} kills: {counts['requests']} requests reserved, {counts['paid']} paid ({unseen} of them not seen to their end by "
        f"the client), {released} released, {counts['topups']} top-ups; nothing acknowledged was lost, nothing was paid twice, all sums are zero"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
