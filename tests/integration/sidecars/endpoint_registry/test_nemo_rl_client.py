"""The registry beside NeMo RL's own client: the calls that one makes, by the same library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kubernetes import client as k8s
from kubernetes import config as k8s_config

from endpoint_registry import EndpointRegistry, Owner, Superseded
from endpoint_registry.records import object_name
from tandem_common.kube import CONFIGMAPS, Client
from tandem_host.control_plane import ControlPlane

JOB = "job"
NAME = object_name(JOB)
GYM = "http://gym:9090"
URLS = '["http://a:8000/v1"]'


def only(error: k8s.ApiException, status: int) -> None:
    """Raise it again unless it has this status."""
    if error.status != status:
        raise error


class NemoRl:
    """The requests of NeMo RL's client, one for one (research notes, §1.3); no code of its own."""

    def __init__(self, api_server: ControlPlane, namespace: str) -> None:
        self._client = k8s_config.new_client_from_config(str(api_server.kubeconfig))
        self._api = k8s.CoreV1Api(self._client)
        self._namespace = namespace

    def close(self) -> None:
        self._client.close()

    def create(self, owner: Owner | None = None) -> None:
        """POST with empty data; on 409 add the owner unless there is a controller."""
        references = [
            k8s.V1OwnerReference(
                api_version=each.api_version, kind=each.kind, name=each.name, uid=each.uid,
                controller=True, block_owner_deletion=False,
            )
            for each in [owner] if each is not None
        ]  # fmt: skip
        metadata = k8s.V1ObjectMeta(
            name=NAME, namespace=self._namespace, owner_references=references or None
        )
        body = k8s.V1ConfigMap(metadata=metadata, data={})
        try:
            self._api.create_namespaced_config_map(self._namespace, body)
        except k8s.ApiException as error:
            only(error, 409)
            if owner is None:
                return
            found: Any = self._api.read_namespaced_config_map(NAME, self._namespace)
            if not any(each.controller for each in found.metadata.owner_references or []):
                self._api.patch_namespaced_config_map(
                    NAME, self._namespace, {"metadata": {"ownerReferences": references}}
                )

    def set(self, key: str, value: str) -> None:
        """GET, set the key, PATCH the whole object, which carries its version; 404: POST."""
        for _ in range(5):
            try:
                found = self._api.read_namespaced_config_map(NAME, self._namespace)
            except k8s.ApiException as error:
                only(error, 404)
                body = k8s.V1ConfigMap(metadata=k8s.V1ObjectMeta(name=NAME), data={key: value})
                self._api.create_namespaced_config_map(self._namespace, body)
                return
            found.data = {**(found.data or {}), key: value}
            try:
                self._api.patch_namespaced_config_map(NAME, self._namespace, found)
            except k8s.ApiException as error:
                only(error, 409)
                continue
            return
        raise RuntimeError("five conflicts")

    def get(self, key: str) -> str | None:
        try:
            found = self._api.read_namespaced_config_map(NAME, self._namespace)
        except k8s.ApiException as error:
            only(error, 404)
            return None
        value: str | None = (found.data or {}).get(key)
        return value


@pytest.fixture
def nemo_rl(api_server: ControlPlane, namespace: str) -> Iterator[NemoRl]:
    client = NemoRl(api_server, namespace)
    yield client
    client.close()


@pytest.fixture
def gym(client: Client) -> Iterator[EndpointRegistry]:
    with EndpointRegistry(JOB, run_uid="run-1", writer="gym", client=client) as registry:
        yield registry


def top(client: Client) -> Owner:
    made = client.create(CONFIGMAPS, {"metadata": {"name": "top"}})
    return Owner("v1", "ConfigMap", "top", made["metadata"]["uid"])


def test_it_reads_what_we_write_and_the_reverse(nemo_rl: NemoRl, gym: EndpointRegistry) -> None:
    gym.publish("gym_head_server", GYM, lease_seconds=60)
    nemo_rl.set("vllm_base_urls", URLS)
    assert nemo_rl.get("gym_head_server") == GYM
    assert gym.wait("vllm_base_urls", timeout=30) == URLS
    assert json.loads(gym.get("vllm_base_urls") or "") == ["http://a:8000/v1"]


def test_its_writes_leave_our_records_and_leases_whole(
    nemo_rl: NemoRl, gym: EndpointRegistry
) -> None:
    gym.publish("gym_head_server", GYM, lease_seconds=60)
    before = gym.read().entries["gym_head_server"].record
    nemo_rl.set("vllm_base_urls", URLS)
    after = gym.read().entries["gym_head_server"]
    assert (after.value, after.record) == (GYM, before)
    gym.renew("gym_head_server", GYM, lease_seconds=60)
    assert gym.get("gym_head_server") == GYM


def test_our_writes_leave_its_values_whole(nemo_rl: NemoRl, gym: EndpointRegistry) -> None:
    gym.create()
    nemo_rl.set("dp_openai_server_base_urls", URLS)
    gym.publish("gym_head_server", GYM)
    gym.renew("gym_head_server", GYM)
    gym.withdraw("gym_head_server")
    assert nemo_rl.get("dp_openai_server_base_urls") == URLS
    assert nemo_rl.get("gym_head_server") is None


def test_a_value_of_its_over_ours_is_the_last_and_has_no_lease(
    nemo_rl: NemoRl, gym: EndpointRegistry
) -> None:
    gym.publish("gym_head_server", GYM, lease_seconds=60)
    nemo_rl.set("gym_head_server", "http://other:1")
    entry = gym.read().entries["gym_head_server"]
    assert (entry.value, entry.record) == ("http://other:1", None)
    assert not gym.withdraw("gym_head_server"), "it is not ours any more"
    assert nemo_rl.get("gym_head_server") == "http://other:1"


def test_an_error_of_its_ends_our_waiters(nemo_rl: NemoRl, gym: EndpointRegistry) -> None:
    gym.create()
    nemo_rl.set("error", "from NeMo RL")
    with pytest.raises(Exception, match="from NeMo RL"):
        gym.wait("gym_head_server", timeout=60)


def test_an_object_that_it_made_for_our_top_object_is_adopted(
    nemo_rl: NemoRl, client: Client
) -> None:
    owner = top(client)
    nemo_rl.create(owner)
    nemo_rl.set("vllm_base_urls", URLS)
    how: dict[str, Any] = {"run_uid": owner.uid, "writer": "gym", "owners": [owner]}
    with EndpointRegistry(JOB, client=client, **how) as gym:
        assert gym.get("vllm_base_urls") is None, "not before somebody says whose it is"
        gym.create()
        assert gym.get("vllm_base_urls") == URLS


def test_an_object_that_it_made_for_nobody_is_replaced(
    nemo_rl: NemoRl, gym: EndpointRegistry
) -> None:
    nemo_rl.create()
    nemo_rl.set("vllm_base_urls", '["http://of-a-former-run:1"]')
    assert gym.get("vllm_base_urls") is None
    gym.create()
    assert nemo_rl.get("vllm_base_urls") is None
    nemo_rl.set("vllm_base_urls", URLS)
    assert gym.get("vllm_base_urls") == URLS


def test_its_write_after_a_persons_deletion_is_kept(
    nemo_rl: NemoRl, gym: EndpointRegistry, client: Client
) -> None:
    """Its `set` makes the object again, bare; the next renewal of ours says whose it is."""
    gym.publish("gym_head_server", GYM, lease_seconds=60)
    client.delete(CONFIGMAPS, NAME)
    nemo_rl.set("vllm_base_urls", URLS)
    uid = client.get(CONFIGMAPS, NAME)["metadata"]["uid"]
    assert gym.get("vllm_base_urls") is None, "not before somebody says whose it is"
    gym.renew("gym_head_server", GYM, lease_seconds=60)
    assert gym.get("vllm_base_urls") == URLS
    assert gym.get("gym_head_server") == GYM
    assert client.get(CONFIGMAPS, NAME)["metadata"]["uid"] == uid


def test_what_it_made_again_is_adopted_by_all_writers_at_once(
    nemo_rl: NemoRl, client: Client
) -> None:
    owner = top(client)
    writers = [
        EndpointRegistry(
            JOB, run_uid="run-1", writer=f"w-{number}", client=client, owners=[owner]
        )
        for number in range(8)
    ]  # fmt: skip
    for writer in writers:
        writer.publish(writer.writer, "here", lease_seconds=60)
    client.delete(CONFIGMAPS, NAME)
    nemo_rl.set("vllm_base_urls", URLS)
    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(lambda each: each.renew(each.writer, "here", lease_seconds=60), writers))
    snapshot = writers[0].read()
    values = {key: entry.value for key, entry in snapshot.entries.items()}
    assert values == {"vllm_base_urls": URLS, **{writer.writer: "here" for writer in writers}}
    found = client.get(CONFIGMAPS, NAME)["metadata"]
    assert [each["uid"] for each in found["ownerReferences"]] == [owner.uid]


def test_what_it_made_again_for_other_owners_is_left_alone(
    nemo_rl: NemoRl, gym: EndpointRegistry, client: Client
) -> None:
    """It may be the next run's: its program came before ours."""
    gym.publish("gym_head_server", GYM, lease_seconds=60)
    client.delete(CONFIGMAPS, NAME)
    nemo_rl.create(top(client))
    nemo_rl.set("vllm_base_urls", URLS)
    with pytest.raises(Superseded, match="owners that are not those of our run"):
        gym.renew("gym_head_server", GYM, lease_seconds=60)
    assert nemo_rl.get("vllm_base_urls") == URLS


def test_it_adds_its_owner_to_ours(nemo_rl: NemoRl, client: Client) -> None:
    ours = top(client)
    made = client.create(CONFIGMAPS, {"metadata": {"name": "its"}})
    its = Owner("v1", "ConfigMap", "its", made["metadata"]["uid"])
    with EndpointRegistry(
        JOB, run_uid="run-1", writer="gym", owners=[ours], client=client
    ) as gym:  # fmt: skip
        gym.create()
        nemo_rl.create(its)
        gym.create()
    references = client.get(CONFIGMAPS, NAME)["metadata"]["ownerReferences"]
    assert {each["uid"] for each in references} == {ours.uid, its.uid}
