"""Background work waits for what a person asks, and is answered all the same."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import clientlib
from support.daemon import ECHO, running

SLOW = ("--echo", "decode_delay_s=0.005,context_tokens=4096", "--max-batch", "1")
TITLE, PERSON = "a title for this", "what a person asks"


def test_a_person_is_answered_before_a_title(tmp_path: Path) -> None:
    with running(tmp_path, *ECHO, *SLOW) as daemon, clientlib.Client(daemon.socket) as client:
        answers: dict[str, str] = {}

        def ask(prompt: str, priority: clientlib.Priority | None) -> None:
            answers[prompt] = client.generate(prompt, priority=priority)

        def waiting() -> list[str]:
            return [str(each["priority"]) for each in client.requests() if each["phase"] == "queued"]

        threads = [
            threading.Thread(target=ask, args=(TITLE, "background")),
            threading.Thread(target=ask, args=(PERSON, None)),
        ]
        with client.stream("running " * 400) as pieces:
            assert next(iter(pieces))
            for number, thread in enumerate(threads):
                thread.start()
                while len(waiting()) <= number:
                    pass
            assert waiting() == ["background", "normal"]
            order = [str(each["id"]) for each in client.requests()]
        for thread in threads:
            thread.join()
        assert answers == {TITLE: TITLE, PERSON: PERSON}
    begun = re.findall(r"(\S+) generating ", daemon.log)
    assert begun == [order[0], order[2], order[1]]
    assert re.findall(r" accepted .*priority=(\S+)", daemon.log) == ["background"]
