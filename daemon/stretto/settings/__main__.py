"""Print what is generated from the table of settings: ``python -m stretto.settings docs`` or ``schema``."""

from __future__ import annotations

import sys

from stretto.settings.render import docs_page, schema_page

PAGES = {"docs": docs_page, "schema": schema_page}


def main(arguments: list[str]) -> int:
    """Print one page; 2 when it is not known."""
    if len(arguments) != 1 or arguments[0] not in PAGES:
        sys.stderr.write(f"usage: python -m stretto.settings {'|'.join(PAGES)}\n")
        return 2
    sys.stdout.write(PAGES[arguments[0]]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
