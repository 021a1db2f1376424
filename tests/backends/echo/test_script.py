"""Echo scripts: what parses, and what a wrong one is told."""

from __future__ import annotations

import pytest

from stretto.backends.echo import EchoScript
from stretto.errors import SettingsError


def test_parse() -> None:
    script = EchoScript.parse("prefill_delay_s=0.5, fail_at_step=3,oom_on_allocate=true,reply=yes, sir = ok")
    assert script == EchoScript(
        prefill_delay_s=0.5, fail_at_step=3, oom_on_allocate=True, reply="yes, sir = ok"
    )
    assert EchoScript.parse("") == EchoScript()
    assert EchoScript.parse("reply=").reply == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("speed=3", "'speed=3' is not one of its settings"),
        ("fail_at_step", "'fail_at_step' is not one of its settings"),
        ("fail_at_step=x", "fail_at_step=x is not allowed; it must be a whole number"),
        ("fail_at_step=1.5", "fail_at_step=1.5"),
        ("fail_at_step=-1", "at least 0"),
        ("decode_delay_s=nan", "decode_delay_s=nan"),
        ("decode_delay_s=soon", "must be a number"),
        ("context_tokens=0", "at least 1"),
        ("oom_on_allocate=maybe", "true or false"),
        ("fail_every=1,fail_every=2", "fail_every is set twice"),
    ],
)
def test_wrong_scripts_are_refused(text: str, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        EchoScript.parse(text)
    assert named in str(caught.value)
