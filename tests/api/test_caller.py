"""Who asks, as the head of a request tells it."""

from __future__ import annotations

import pytest

from stretto.api import caller_of
from stretto.conversation import Caller
from stretto.errors import Forbidden, InvalidRequest


def scope(*fields: tuple[str, str], **state: str) -> dict[str, object]:
    return {"headers": [(name.encode(), value.encode("latin-1")) for name, value in fields], "state": state}


def test_a_head_that_says_nothing_is_the_default_caller() -> None:
    assert caller_of(scope(("content-type", "application/json"))) == Caller()


def test_both_spellings_mean_the_same() -> None:
    fields = {"session": "work", "memory": "Read", "cache": "refresh"}
    expected = Caller(tenant="t1", session="work", memory="read", cache="refresh", idempotency_key="k")
    for prefix in ("x-stretto-", "x-fuuga-"):
        head = [(prefix + name, value) for name, value in fields.items()]
        assert caller_of(scope(*head, ("idempotency-key", "k"), tenant="t1")) == expected


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ([("x-stretto-memory", "readonly")], "x-stretto-memory", "on, read, off"),
        ([("x-fuuga-memory", "")], "x-stretto-memory", "on, read, off"),
        ([("x-stretto-cache", "read")], "x-stretto-cache", "on, refresh, off"),
        ([("x-stretto-session", "a\tb")], "x-stretto-session", "printable"),
        ([("x-stretto-session", "")], "x-stretto-session", "printable"),
        ([("x-stretto-session", "é")], "x-stretto-session", "printable"),
        ([("x-stretto-session", "a" * 129)], "x-stretto-session", "128"),
        ([("x-stretto-session", "a"), ("x-fuuga-session", "b")], "x-stretto-session", "2 times"),
        ([("idempotency-key", "k" * 256)], "idempotency-key", "255"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: list[tuple[str, str]], param: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        caller_of(scope(*fields))
    assert (caught.value.code, caught.value.param, caught.value.status) == ("invalid_header", param, 400)


def test_a_field_given_twice_with_one_value_is_one() -> None:
    assert caller_of(scope(("x-stretto-session", "a"), ("x-fuuga-session", "a"))).session == "a"


@pytest.mark.parametrize("prefix", ["x-stretto-", "x-fuuga-"])
@pytest.mark.parametrize("said", ["high", "normal", "background", "Background"])
def test_priorities(prefix: str, said: str) -> None:
    assert caller_of(scope((f"{prefix}priority", said))).priority == said.lower()


def test_no_priority_leaves_it_to_the_body() -> None:
    assert caller_of(scope()).priority is None


@pytest.mark.parametrize("said", ["low", "", "1", "high,normal", "hïgh"])
def test_a_priority_that_is_none_is_refused(said: str) -> None:
    with pytest.raises(InvalidRequest, match="it must be one of high, normal, background") as caught:
        caller_of(scope(("x-stretto-priority", said)))
    assert (caught.value.code, caught.value.param) == ("invalid_header", "x-stretto-priority")


def test_a_guest_goes_before_nobody() -> None:
    for said in ("normal", "background"):
        assert caller_of(scope(("x-stretto-priority", said), tenant="key_1")).priority == said
    with pytest.raises(Forbidden, match="'high'") as caught:
        caller_of(scope(("x-stretto-priority", "high"), tenant="key_1"))
    assert (caught.value.code, caught.value.param, caught.value.status) == (
        "priority_not_allowed",
        "x-stretto-priority",
        403,
    )
    assert caught.value.remedy == "Send normal or background, or leave it out."
