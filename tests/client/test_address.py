"""Where a client connects."""

from __future__ import annotations

from pathlib import Path

import pytest

import clientlib
from clientlib.address import parse_base_url, unix_address


@pytest.mark.parametrize(
    ("url", "shown", "host", "prefix"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1:8080", ""),
        ("http://localhost:1/", "http://localhost:1", "localhost:1", ""),
        ("http://box", "http://box:80", "box:80", ""),
        ("http://[::1]:8080/v1", "http://[::1]:8080", "[::1]:8080", ""),
        ("http://box:1/llm/v1/", "http://box:1/llm", "box:1", "/llm"),
    ],
)
def test_base_url(url: str, shown: str, host: str, prefix: str) -> None:
    address = parse_base_url(url)
    assert (str(address), address.host_header, address.prefix) == (shown, host, prefix)


@pytest.mark.parametrize(
    "url",
    [
        "https://box",
        "box:8080",
        "http://",
        "http://box:x",
        "http://box:70000",
        "http://u:p@box",
        "http://box/?a",
        "http://box/#a",
    ],
)
def test_what_is_no_base_url(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        parse_base_url(url)


def test_unix_address() -> None:
    address = unix_address("~/x.sock")
    assert address.path == Path.home() / "x.sock"
    assert (address.host_header, address.prefix) == ("localhost", "")


def test_a_client_says_where_it_goes_and_not_its_key() -> None:
    client = clientlib.Client(base_url="http://127.0.0.1:9", api_key="secret")
    assert repr(client) == "Client('http://127.0.0.1:9')"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"socket": "/a", "base_url": "http://box"}, "exclude"),
        ({"retries": -1}, "retries"),
        ({"api_key": "a\r\nb"}, "api_key"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": "ä"}, "api_key"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        clientlib.Client(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_checked(value: float) -> None:
    with pytest.raises(ValueError, match="idle_s"):
        clientlib.Timeouts(idle_s=value)
    with pytest.raises(ValueError, match="timeout_s"):
        clientlib.Client("/a").generate("x", timeout_s=value)
    with pytest.raises(ValueError, match="timeout_s"):
        clientlib.Client("/a").stream("x", timeout_s=value)
