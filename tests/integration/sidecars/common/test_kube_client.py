"""The Kubernetes client against a real API server, with faults between the two."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import stamina

from support.fault_proxy import Answer, FaultProxy, Hang, Reset, Seen
from tandem_common.clock import Deadline
from tandem_common.kube import (
    CONFIGMAPS,
    RAYCLUSTERS,
    AlreadyExists,
    Client,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    Invalid,
    NotFound,
    OtherObject,
    OwnedByAnother,
    Unauthorized,
    from_kubeconfig,
)
from tandem_host.control_plane import ControlPlane


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "data": data}


def test_stamina_is_on_as_it_is_in_production() -> None:
    assert stamina.is_active()
    assert not stamina.is_testing()


def test_over_tls_with_the_kubeconfigs_certificate(
    api_server: ControlPlane, namespace: str
) -> None:
    with Client(from_kubeconfig(api_server.kubeconfig)) as client:
        client.create(CONFIGMAPS, config_map("a", k="v"), namespace=namespace)
        assert client.get(CONFIGMAPS, "a", namespace=namespace)["data"] == {"k": "v"}


def test_a_list_is_of_the_name_or_labels_asked_for(client: Client) -> None:
    for name in ("a", "b"):
        client.create(
            CONFIGMAPS, {"metadata": {"name": name, "labels": {"is": name}}, "data": {"k": name}}
        )
    named = client.list(CONFIGMAPS, name="a")
    assert [item["metadata"]["name"] for item in named.items] == ["a"]
    assert named.items[0]["kind"] == "ConfigMap"
    assert named.resource_version
    labelled = client.list(CONFIGMAPS, label_selector="is=b")
    assert [item["metadata"]["name"] for item in labelled.items] == ["b"]


def test_the_servers_clock_comes_with_a_list(client: Client) -> None:
    found = client.list(CONFIGMAPS).server_time
    assert found is not None
    assert abs(found - time.time()) < 60


def test_what_is_there_already_and_what_is_not_have_types(client: Client) -> None:
    client.create(CONFIGMAPS, config_map("a"))
    with pytest.raises(AlreadyExists):
        client.create(CONFIGMAPS, config_map("a"))
    with pytest.raises(NotFound):
        client.get(CONFIGMAPS, "b")
    with pytest.raises(NotFound):
        client.get(RAYCLUSTERS, "of-a-kind-that-is-not-installed")
    with pytest.raises(Invalid):
        client.create(CONFIGMAPS, config_map("Not_A_Name"))


def test_a_deletion_with_a_uid_spares_an_object_that_came_after(client: Client) -> None:
    first = client.create(CONFIGMAPS, config_map("a"))["metadata"]["uid"]
    client.delete(CONFIGMAPS, "a", uid=first)
    second = client.create(CONFIGMAPS, config_map("a"))["metadata"]["uid"]
    with pytest.raises(Conflict):
        client.delete(CONFIGMAPS, "a", uid=first)
    assert client.get(CONFIGMAPS, "a")["metadata"]["uid"] == second


def test_a_deletion_of_a_version_spares_an_object_that_changed(client: Client) -> None:
    version = client.create(CONFIGMAPS, config_map("a"))["metadata"]["resourceVersion"]
    client.merge_patch(CONFIGMAPS, "a", {"data": {"k": "v"}})
    with pytest.raises(Conflict):
        client.delete(CONFIGMAPS, "a", resource_version=version)


def test_an_apply_owns_its_fields_and_no_other(client: Client) -> None:
    client.apply(CONFIGMAPS, config_map("a", mine="1"), field_manager="me")
    client.apply(CONFIGMAPS, config_map("a", yours="1"), field_manager="you")
    with pytest.raises(OwnedByAnother):
        client.apply(CONFIGMAPS, config_map("a", mine="2"), field_manager="you")
    client.apply(CONFIGMAPS, config_map("a"), field_manager="you")
    assert client.get(CONFIGMAPS, "a")["data"] == {"mine": "1"}
    client.apply(CONFIGMAPS, config_map("a", mine="2"), field_manager="you", force=True)
    assert client.get(CONFIGMAPS, "a")["data"] == {"mine": "2"}


@pytest.mark.parametrize("case", ["another object", "no object"])
def test_an_apply_with_a_uid_touches_no_other_object(client: Client, case: str) -> None:
    there = case == "another object"
    if there:
        client.create(CONFIGMAPS, config_map("a", k="v"))
    body = {"metadata": {"name": "a", "uid": "not-its-uid"}, "data": {"k": "w"}}
    with pytest.raises(Conflict):
        client.apply(CONFIGMAPS, body, field_manager="me", force=True)
    assert [item["data"] for item in client.list(CONFIGMAPS, name="a").items] == (
        [{"k": "v"}] if there else []
    )


def test_patches_change_what_they_name(client: Client) -> None:
    client.create(CONFIGMAPS, config_map("a", k="v", gone="x"))
    client.merge_patch(CONFIGMAPS, "a", {"data": {"gone": None, "new": "y"}})
    assert client.get(CONFIGMAPS, "a")["data"] == {"k": "v", "new": "y"}
    test = {"op": "test", "path": "/data/k", "value": "v"}
    replace = {"op": "replace", "path": "/data/k", "value": "w"}
    client.json_patch(CONFIGMAPS, "a", [test, replace])
    with pytest.raises(Invalid):
        client.json_patch(CONFIGMAPS, "a", [test, replace])


# --- faults ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [Answer(429), Answer(500), Answer(502), Answer(503), Answer(504), Reset()],
    ids=repr,
)
def test_a_fault_that_passes_is_not_the_callers_matter(
    proxy: FaultProxy, client: Client, fault: Answer | Reset
) -> None:
    rule = proxy.inject(fault, verb="create", count=3)
    client.create(CONFIGMAPS, config_map("a"))
    assert rule.hits == 3
    assert proxy.count("create") == 4


def test_a_conflict_of_a_patch_without_precondition_is_tried_again(
    proxy: FaultProxy, client: Client
) -> None:
    made = client.create(CONFIGMAPS, config_map("a"))["metadata"]
    proxy.inject(Answer(409, reason="Conflict"), verb="patch", count=2)
    client.merge_patch(CONFIGMAPS, "a", {"metadata": {"uid": made["uid"]}, "data": {"k": "v"}})
    assert proxy.count("patch") == 3
    version = {"resourceVersion": made["resourceVersion"]}
    with pytest.raises(Conflict):
        client.merge_patch(CONFIGMAPS, "a", {"metadata": version, "data": {"k": "w"}})
    assert proxy.count("patch") == 4


def test_a_patch_with_a_uid_touches_no_other_object(client: Client) -> None:
    client.create(CONFIGMAPS, config_map("a", k="v"))
    with pytest.raises(OtherObject):
        client.merge_patch(CONFIGMAPS, "a", {"metadata": {"uid": "x"}, "data": {"k": "w"}})
    assert client.get(CONFIGMAPS, "a")["data"] == {"k": "v"}


def test_the_servers_clock_is_known_without_asking(client: Client) -> None:
    assert client.server_time() is None
    client.list(CONFIGMAPS)
    found = client.server_time()
    assert found is not None
    assert abs(found - time.time()) < 60


def test_a_server_that_is_given_too_little_time_gets_more_at_each_attempt(
    proxy: FaultProxy, client: Client
) -> None:
    client.create(CONFIGMAPS, config_map("a"))
    proxy.inject(Answer(504, reason="Timeout"), verb="patch", count=2)
    client.merge_patch(CONFIGMAPS, "a", {"data": {"k": "v"}}, server_seconds=2)
    asked = [seen.path.rpartition("timeout=")[2] for seen in proxy.seen if seen.verb == "patch"]
    assert asked == ["2s", "4s", "6s"]


def test_retry_after_is_honoured(proxy: FaultProxy, client: Client) -> None:
    proxy.inject(Answer(429, retry_after=1), verb="list")
    client.list(CONFIGMAPS)
    first, second = [seen.at for seen in proxy.seen if seen.verb == "list"]
    assert second - first >= 1


def test_a_retry_after_beyond_the_deadline_ends_it_at_once(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.inject(Answer(503, retry_after=3600, message="rolling"), verb="list", count=None)
    with pytest.raises(DeadlineExceeded, match="rolling"):
        client.list(CONFIGMAPS, deadline=Deadline(20))
    assert proxy.count("list") == 1


@pytest.mark.parametrize("fault", [Answer(503), Reset(), Hang()], ids=repr)
def test_a_fault_that_stays_ends_with_the_deadline_and_its_cause(
    proxy: FaultProxy, client: Client, fault: Answer | Reset | Hang
) -> None:
    deadline = Deadline(2)
    rule = proxy.inject(fault, verb="get", count=None)
    with pytest.raises(DeadlineExceeded) as caught:
        client.get(CONFIGMAPS, "a", deadline=deadline)
    assert caught.value.attempts == rule.hits >= 1
    assert caught.value.last is not None


def test_attempts_are_bounded_whatever_the_deadline(proxy: FaultProxy, namespace: str) -> None:
    rule = proxy.inject(Answer(503), count=None)
    with Client(proxy.config(namespace), attempts=4) as client, pytest.raises(DeadlineExceeded):
        client.list(CONFIGMAPS, deadline=Deadline(600))
    assert rule.hits == 4


def test_a_write_whose_answer_is_lost_is_found_to_be_done(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.inject(Reset(after=True), verb="create")
    with pytest.raises(AlreadyExists):
        client.create(CONFIGMAPS, config_map("a", k="v"))
    assert client.get(CONFIGMAPS, "a")["data"] == {"k": "v"}


def test_a_hang_of_one_attempt_is_outlived(proxy: FaultProxy, namespace: str) -> None:
    proxy.inject(Hang(), verb="list")
    with Client(proxy.config(namespace), read_seconds=0.5) as client:
        client.list(CONFIGMAPS, deadline=Deadline(20))
    assert proxy.count("list") == 2


# --- who we are --------------------------------------------------------------------------


def test_a_401_is_answered_with_the_token_that_was_renewed_meanwhile(
    proxy: FaultProxy, namespace: str, token: Callable[[str], str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("expired")
    fresh = token("reader")

    def renew(_seen: Seen) -> bool:
        file.write_text(fresh)
        return False

    proxy.inject(Reset(), where=renew)
    with Client(proxy.config(namespace, token_file=file)) as client, pytest.raises(Forbidden):
        # Forbidden: known now, and without any right.
        client.get(CONFIGMAPS, "a")
    assert proxy.count("get") == 2


def test_a_token_that_nobody_knows_is_tried_twice_and_no_more(
    proxy: FaultProxy, namespace: str
) -> None:
    with (
        Client(proxy.config(namespace, token="nobody's")) as client,  # noqa: S106
        pytest.raises(Unauthorized),
    ):
        client.get(CONFIGMAPS, "a")
    assert proxy.count("get") == 2


def test_what_is_not_allowed_names_the_rule(
    proxy: FaultProxy, namespace: str, token: Callable[[str], str]
) -> None:
    with (
        Client(proxy.config(namespace, token=token("nobody"))) as client,
        pytest.raises(Forbidden, match=r'resources: \["configmaps"\], verbs: \["create"\]'),
    ):
        client.create(CONFIGMAPS, config_map("a"))
    assert proxy.count() == 1, "what is forbidden is not tried again"


def test_no_namespace_is_never_the_default_one(proxy: FaultProxy) -> None:
    with Client(proxy.config("")) as client, pytest.raises(ValueError, match="no namespace"):
        client.list(CONFIGMAPS)
    assert proxy.count() == 0
