"""The token's program against a real API server."""

from __future__ import annotations

from base64 import b64decode

import pytest

from ray_token.__main__ import SECRETS, TOKEN_BYTES, fill
from support.fault_proxy import FaultProxy
from tandem_common.kube import Client, NotFound

pytestmark = pytest.mark.api_server

NAME = "ray-token"


def tokens(client: Client) -> dict[str, str]:
    data = client.get(SECRETS, NAME).get("data", {})
    return {key: b64decode(value).decode() for key, value in data.items()}


def test_an_empty_secret_gets_a_token_for_each_ray(client: Client, namespace: str) -> None:
    client.create(SECRETS, {"metadata": {"name": NAME}})
    assert fill(client, namespace, NAME, ("rl", "gym"))
    found = tokens(client)
    assert set(found) == {"rl", "gym"}
    assert all(len(token) == 2 * TOKEN_BYTES for token in found.values())
    assert found["rl"] != found["gym"]


def test_a_token_that_is_there_stays(client: Client, namespace: str) -> None:
    client.create(SECRETS, {"metadata": {"name": NAME}})
    fill(client, namespace, NAME, ("rl",))
    before = tokens(client)
    assert not fill(client, namespace, NAME, ("rl", "gym"))
    assert tokens(client) == before


def test_of_two_that_fill_it_at_once_the_first_one_counts(
    client: Client, proxy: FaultProxy, namespace: str
) -> None:
    client.create(SECRETS, {"metadata": {"name": NAME}})
    with Client(proxy.config(namespace)) as late:
        look = late.get
        read: list[object] = []

        def get_and_be_overtaken(*args: object, **how: object) -> dict[str, object]:
            found = look(*args, **how)  # type: ignore[arg-type]
            if not read:
                assert fill(client, namespace, NAME, ("rl",))
            read.append(found)
            return found

        late.get = get_and_be_overtaken  # type: ignore[method-assign]
        assert not fill(late, namespace, NAME, ("rl",))
        assert len(read) == 2, "the second look has seen the other one's"


def test_without_the_secret_it_says_so(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound, match=NAME):
        fill(client, namespace, NAME, ("rl",))
