"""A pool of judges: who may do what, which pods it takes for its own, and how it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import pytest

from endpoint_registry.settings import SidecarSettings
from ray_token.__main__ import TokenSettings
from tandem.policy import Pod, pods_of
from tandem.render import kustomize, render_variant, variants
from tandem.run.identity import drop_overlay, write_overlay
from tandem.run.phases import Group, states_of
from tandem.run.shapes import labels_of, role_of, workloads_of
from tandem_common.settings import Settings
from vllm_pool.replica.settings import ReplicaSettings
from vllm_pool.settings import PoolSettings

Object = dict[str, Any]

WITH_POOL = [name for name in variants() if name.endswith("-judge")]
RUN_ID = "pool-7"
_S = TypeVar("_S", bound=Settings)


@pytest.fixture(params=WITH_POOL)
def objects(request: pytest.FixtureRequest) -> Iterator[list[Object]]:
    """A variant with a pool, as `make run` would apply it."""
    folder = write_overlay(request.param, RUN_ID)
    yield kustomize(folder)
    drop_overlay(folder)


def named(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [
        each
        for each in objects
        if (each["kind"], each["metadata"]["name"]) == (kind, f"{name}-{RUN_ID}")
    ]
    return found


def pod(objects: list[Object], name: str) -> Pod:
    [found] = pods_of(named(objects, "Deployment", name))
    return found


def container(of: Pod, name: str) -> Object:
    [found] = [each for each in of.containers if each["name"] == name]
    return found


def environment(of: Pod, name: str) -> dict[str, str]:
    """The variables of a container as the kubelet would fill them in."""
    known = {"metadata.namespace": "tandem", "metadata.name": "judge-replicas-x",
             "metadata.uid": "u-1", "status.podIP": "10.0.0.7"}  # fmt: skip
    for kind in ("labels", "annotations"):
        for key, value in of.metadata[kind].items():
            known[f"metadata.{kind}['{key}']"] = value
    found: dict[str, str] = {}
    for each in container(of, name).get("env", []):
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[each["name"]] = known[path] if path else filled(each["value"], found)
    return found


def filled(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda each: known[each[1]], text)


def loaded(kind: type[_S], variables: Mapping[str, str], m: pytest.MonkeyPatch) -> _S:
    for key, value in variables.items():
        m.setenv(key, value)
    return kind.load({})


def test_only_the_keeper_may_ask_the_api_server_and_only_for_its_own(
    objects: list[Object],
) -> None:
    accounts = {}
    for part in ("replicas", "balancer", "keeper"):
        each = pod(objects, f"judge-{part}")
        assert each.spec["automountServiceAccountToken"] is False
        tokens = [v for v in each.spec["volumes"] if "projected" in v]
        assert len(tokens) == (part == "keeper"), part
        accounts[part] = each.spec["serviceAccountName"]
    assert accounts["replicas"] == accounts["balancer"] != accounts["keeper"]
    bound = [
        subject["name"]
        for each in objects
        if each["kind"] == "RoleBinding"
        for subject in each["subjects"]
    ]
    assert accounts["replicas"] not in bound
    for rule in named(objects, "Role", "judge-keeper")["rules"]:
        assert rule["resourceNames"], rule
        assert all(name.endswith(f"-{RUN_ID}") for name in rule["resourceNames"]), rule


def test_the_keeper_adopts_every_deployment_and_may(objects: list[Object]) -> None:
    keeper = pod(objects, "judge-keeper")
    variables = environment(keeper, "adopt")
    things = [filled(each, variables) for each in container(keeper, "adopt")["args"]]
    every = [each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"]
    assert sorted(things) == sorted(f"Deployment/{name}" for name in every)
    [rule] = [r for r in named(objects, "Role", "judge-keeper")["rules"]
              if r["resources"] == ["deployments"]]  # fmt: skip
    assert sorted(rule["resourceNames"]) == sorted(every)
    # First of all: what comes after may fail, and the pool must go with the run all the same.
    assert keeper.spec["initContainers"][0]["name"] == "adopt"
    assert variables["ENDPOINT_REGISTRY_RUN_OBJECT"] == f"RayCluster/rl-{RUN_ID}"


def test_its_name_leads_to_the_balancers_service(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = pod(objects, "judge-keeper")
    settings = loaded(SidecarSettings, environment(keeper, "registry"), monkeypatch)
    service = named(objects, "Service", "judge")
    [port] = service["spec"]["ports"]
    host = f"http://{service['metadata']['name']}.tandem.svc:{port['port']}"
    assert (settings.key, settings.urls) == ("judge_base_url", (f"{host}/v1",))
    # A pool that answers /health while no replica serves is no judge.
    assert str(settings.probe_url) == f"{host}/ready"
    assert settings.job_id == RUN_ID


def test_one_token_reaches_all_that_ask_for_it_or_check_it(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = environment(pod(objects, "judge-keeper"), "make-token")
    settings = loaded(TokenSettings, made, monkeypatch)
    secret = named(objects, "Secret", "judge-token")
    assert (settings.secret, settings.keys) == (secret["metadata"]["name"], ("token",))
    assert "data" not in secret, "nothing secret is in any file"
    for part, user in (("replicas", "agent"), ("balancer", "balancer")):
        each = pod(objects, f"judge-{part}")
        [volume] = [v for v in each.spec["volumes"] if "secret" in v]
        assert volume["secret"]["secretName"] == settings.secret
        mounts = container(each, user)["volumeMounts"]
        [mount] = [m for m in mounts if m["name"] == volume["name"]]
        [item] = volume["secret"]["items"]
        variables = environment(each, user)
        [path] = [v for k, v in variables.items() if k.endswith("TOKEN_FILE")]
        assert path == f"{mount['mountPath']}/{item['path']}"
    [head] = pods_of(named(objects, "RayCluster", "gym"))[:1]
    [volume] = [v for v in head.spec["volumes"] if "secret" in v]
    assert volume["secret"]["secretName"] == settings.secret
    asks = {e["name"]: e.get("value", "") for e in container(head, "ray-head")["env"]}
    [mount] = [m for m in container(head, "ray-head")["volumeMounts"]
               if m["name"] == volume["name"]]  # fmt: skip
    assert asks["GYM_SERVER_JUDGE_TOKEN_FILE"].startswith(f"{mount['mountPath']}/")
    assert asks["GYM_SERVER_JUDGES"] == "judge"
    # vLLM does not get it: it would pass it on to whoever reads its environment.
    vllm = container(pod(objects, "judge-replicas"), "vllm")
    assert all(mount["name"] != "pool-token" for mount in vllm["volumeMounts"])


def test_a_replica_finds_every_balancer_and_is_drained_before_it_ends(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = pod(objects, "judge-replicas")
    settings = loaded(ReplicaSettings, environment(replica, "agent"), monkeypatch)
    members = named(objects, "Service", "judge-members")
    name, [port] = members["metadata"]["name"], members["spec"]["ports"]
    assert settings.manager == (f"dns+http://{name}:{port['port']}",)
    # Also those that no replica has made ready yet.
    assert members["spec"]["clusterIP"] == "None"
    assert members["spec"]["publishNotReadyAddresses"] is True
    agent, vllm = container(replica, "agent"), container(replica, "vllm")
    # It outlives the server's container, so the hook finds it.
    assert agent["restartPolicy"] == "Always"
    [listens] = [a for a in vllm["args"] if a.startswith("--port=")]
    port_of = listens.removeprefix("--port=")
    assert settings.target.endswith(f":{port_of}")
    assert settings.advertise.endswith(f":{port_of}")
    hook = vllm["lifecycle"]["preStop"]["exec"]["command"]
    assert f"127.0.0.1:{settings.control_port}/drain" in hook[-1]
    assert settings.drain_seconds < replica.spec["terminationGracePeriodSeconds"]


def test_a_balancer_drains_within_its_grace(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer = pod(objects, "judge-balancer")
    settings = loaded(PoolSettings, environment(balancer, "balancer"), monkeypatch)
    limit = balancer.spec["terminationGracePeriodSeconds"]
    assert settings.drain_notice_seconds + settings.drain_seconds < limit
    assert named(objects, "Deployment", "judge-balancer")["spec"]["replicas"] == 2
    ports = {p["name"]: p["containerPort"] for p in container(balancer, "balancer")["ports"]}
    assert ports == {"http": settings.listen_port, "metrics": settings.metrics_port}
    # All that it writes is on a volume: the root is read-only.
    mounts = [m["mountPath"] for m in container(balancer, "balancer")["volumeMounts"]]
    assert any(settings.run_dir.is_relative_to(each) for each in mounts)


def selectors(objects: list[Object]) -> Iterator[tuple[str, dict[str, str]]]:
    for each in objects:
        spec, name = each.get("spec", {}), f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in ("Deployment", "PodDisruptionBudget"):
            yield name, spec["selector"]["matchLabels"]
        elif each["kind"] == "Service":
            yield name, spec["selector"]
        elif each["kind"] == "NetworkPolicy":
            yield name, spec["podSelector"]["matchLabels"]
            yield f"{name} from", spec["ingress"][0]["from"][0]["podSelector"]["matchLabels"]


def test_whatever_chooses_pods_chooses_this_runs_and_one_part(objects: list[Object]) -> None:
    pods = [each for obj in objects for each in pods_of(obj)]
    seen = 0
    for name, wanted in selectors(objects):
        chosen = [p for p in pods if wanted.items() <= p.metadata["labels"].items()]
        assert len(chosen) == 1, name
        assert wanted["tandem.dev/run-id"] == RUN_ID, name
        seen += 1
    assert seen >= 9
    policy = named(objects, "NetworkPolicy", "judge-replicas")
    assert policy["spec"]["ingress"][1] == {"ports": [{"port": "agent"}]}


def test_metrics_have_a_port_of_that_name(objects: list[Object]) -> None:
    for part in ("replicas", "balancer"):
        each = pod(objects, f"judge-{part}")
        wanted = int(each.metadata["annotations"]["prometheus.io/port"])
        ports = [p for c in each.containers for p in c.get("ports", [])]
        assert wanted in {p["containerPort"] for p in ports if p["name"] in ("metrics", "agent")}


@pytest.mark.parametrize("variant", WITH_POOL)
def test_a_plain_apply_chooses_the_same_pods(variant: str) -> None:
    objects = render_variant(variant)
    [run_id] = {labels_of(each)["tandem.dev/run-id"] for each in objects}
    assert all(wanted["tandem.dev/run-id"] == run_id for _, wanted in selectors(objects))


def test_its_parts_are_told_apart(objects: list[Object]) -> None:
    pools = [each for each in workloads_of(objects) if role_of(each) == "pool"]
    wanted = {
        Group("pool", "balancer"): 2,
        Group("pool", "keeper"): 1,
        Group("pool", "replicas"): 2,
    }
    assert {each.group: each.wanted for each in states_of(pools, [])} == wanted
    # Pods are counted to the part that they are of, and to no other.
    pods = [
        {"metadata": {**each.metadata, "name": each.where}, "status": {"phase": "Running"}}
        for obj in pools
        for each in pods_of(obj)
    ]
    assert {each.group: each.wanted for each in states_of(pools, pods)} == wanted
    assert [str(each.group) for each in states_of([], pods)] == [
        "pool/balancer", "pool/keeper", "pool/replicas",
    ]  # fmt: skip
