from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_server.urls import UrlError, override, parse


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("http://10.0.0.1:9090", "http://10.0.0.1:9090"),
        ("http://gym", "http://gym:80"),
        ("https://gym", "https://gym:443"),
        ("HTTPS://Gym.example.com./v1/", "https://gym.example.com.:443/v1"),
        ("http://gym:9090/a/b//", "http://gym:9090/a/b"),
        ("http://[fd00:0::1]:9090", "http://[fd00::1]:9090"),
        ("https://[fd00::1]/x", "https://[fd00::1]:443/x"),
        ("gym-head.rl.svc:9090", "http://gym-head.rl.svc:9090"),
        ("10.0.0.1", "http://10.0.0.1:80"),
        ("fd00::1", "http://[fd00::1]:80"),
        ("[fd00::1]:9090/x", "http://[fd00::1]:9090/x"),
        ("localhost:9090", "http://localhost:9090"),
        (" http://gym:1 \n", "http://gym:1"),
    ],
)
def test_every_form_of_an_address_becomes_one(text: str, whole: str) -> None:
    assert str(parse(text)) == whole


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("http://a b", "white space"),
        ("ftp://gym:21", "neither http nor https"),
        ("http://:9090", "names no host"),
        ("http://gym:", "no port"),
        ("http://gym:0", "1 to 65535"),
        ("http://gym:65536", "range"),
        ("http://gym:port", "port"),
        ("http://user:secret@gym:1", "user name or password"),
        ("http://gym:1/?x=1", "no `?`"),
        ("http://gym:1/?", "no `?`"),
        ("http://gym:1#x", "no `#`"),
        ("http://10.0.0.256:1", "10.0.0.256"),
        ("http://10.0.1:1", "10.0.1"),
        ("http://[fd00::zz]:1", "fd00::zz"),
        ("http://[fd00::1", "no URL"),
        ("http://-gym:1", "no name of a host"),
        ("http://gym..svc:1", "no name of a host"),
        ("http://" + "a" * 64, "no name of a host"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UrlError) as caught:
        parse(text)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda ip: f"[{ip}]"),
    st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z][a-z0-9]{0,10}){0,3}", fullmatch=True),
)


@given(
    st.sampled_from(["http", "https"]),
    hosts,
    st.one_of(st.none(), st.integers(1, 65535)),
    st.sampled_from(["", "/", "/v1", "/v1/", "/a/b"]),
)
def test_what_was_parsed_parses_to_itself(
    scheme: str, host: str, port: int | None, path: str
) -> None:
    text = f"{scheme}://{host}{'' if port is None else f':{port}'}{path}"
    url = parse(text)
    assert parse(str(url)) == url
    assert url.scheme == scheme
    assert url.port == (port or {"http": 80, "https": 443}[scheme])
    if host.startswith("["):
        assert ipaddress.ip_address(url.host) == ipaddress.ip_address(host[1:-1])


def test_a_path_is_put_below_the_address() -> None:
    assert parse("http://gym:1/v1/").at("/models") == "http://gym:1/v1/models"


@pytest.mark.parametrize(
    ("value", "argument"),
    [
        ("http://10.0.0.1:9090/a-b", "+env.remote_gym_url=http://10.0.0.1:9090/a-b"),
        ("http://[fd00::1]:9090", "+env.remote_gym_url='http://[fd00::1]:9090'"),
        ("http://gym:1/a,b", "+env.remote_gym_url='http://gym:1/a,b'"),
        ("it's", "+env.remote_gym_url='it\\'s'"),
    ],
)
def test_an_override_is_quoted_where_hydra_would_read_something_else(
    value: str, argument: str
) -> None:
    assert override("env.remote_gym_url", value) == argument
