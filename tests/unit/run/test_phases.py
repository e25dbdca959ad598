"""What a run's parts are doing, read from objects and pods."""

from __future__ import annotations

from support.run_objects import job, jobset, pod, raycluster
from tandem.run.phases import failed_parts, states_of


def told(*args: list[dict[str, object]]) -> dict[str, str]:
    return {str(s.group): f"{s.phase} {s.ready}/{s.wanted}" for s in states_of(*args)}


def test_what_has_no_pod_yet_is_told_of() -> None:
    workloads = [job(), raycluster("gym", "gym"), raycluster("rl", "rl", workers=2)]
    assert told(workloads, []) == {
        "rl/head": "No pods 0/1", "rl/workers": "No pods 0/2", "gym/head": "No pods 0/1",
        "driver": "No pods 0/1",
    }  # fmt: skip


def test_a_group_is_as_its_worst_pod() -> None:
    workloads = [raycluster("rl", "rl", workers=2)]
    one = pod("rl", "worker", name="w1")
    assert told(workloads, [one])["rl/workers"] == "Starting 1/2"
    other = pod("rl", "worker", name="w2", words="0/1 nodes: Insufficient cpu", phase="Pending")
    [state] = [s for s in states_of(workloads, [one, other]) if s.group.name == "workers"]
    assert (state.phase, state.ready, state.wanted) == ("Pending", 1, 2)
    assert "Insufficient cpu" in state.why


def test_a_pod_that_was_replaced_says_nothing_of_its_group() -> None:
    old = pod("rl", "head", name="old", phase="Failed", exit_code=1)
    new = pod("rl", "head", name="new")
    assert told([raycluster("rl", "rl")], [old, new]) == {"rl/head": "Running 1/1"}
    [state] = states_of([raycluster("rl", "rl")], [old])
    assert (state.phase, state.why) == ("Failed", "container ray ended with code 1")


def test_roles_of_a_jobset_read_like_those_of_rayclusters() -> None:
    names = {"rl-head": ("rl", "h"), "rl-workers": ("rl", "w"), "driver": ("driver", "d")}
    pods = [pod(role, name=name) for role, name in names.values()]
    for made, replicated in zip(pods, names, strict=True):
        made["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = replicated
    assert told([jobset()], pods) == {
        "rl/head": "Running 1/1", "rl/workers": "Starting 1/2", "driver": "Running 1/1",
    }  # fmt: skip


def test_a_wrong_image_is_the_reason() -> None:
    waiting = pod("gym", "head", phase="Pending", ready=False, waiting="ErrImageNeverPull")
    [state] = states_of([raycluster("gym", "gym")], [waiting])
    assert state.phase == "Starting"
    assert "image x" in state.why


def test_watchers_are_told_of_as_one() -> None:
    pods = [pod("watcher", name="w1"), pod("watcher", name="w2", ready=False)]
    assert told([], pods) == {"watcher": "Starting 1/2"}


def test_the_part_that_ended_first_by_itself_is_named_first() -> None:
    def ended(role: str, code: int, second: int) -> dict[str, object]:
        made = pod(role, "head", phase="Failed", exit_code=code)
        state = made["status"]["containerStatuses"][0]["state"]
        state["terminated"]["finishedAt"] = f"2026-12-02T10:00:0{second}Z"
        return made

    pods = [ended("rl", 3, 5), ended("gym", 1, 2), ended("driver", 137, 1), pod("rl", "worker")]
    assert failed_parts(pods) == [
        "gym/head: container ray ended with code 1", "rl/head: container ray ended with code 3",
    ]  # fmt: skip
    # An init container that fails keeps its pod from ever running.
    first = pod("rl", "head", phase="Failed")
    state = {"terminated": {"exitCode": 3}}
    first["status"]["initContainerStatuses"] = [{"name": "ray-token", "state": state}]
    assert failed_parts([first]) == ["rl/head: container ray-token ended with code 3"]
    [told_of] = states_of([], [first])
    assert told_of.why == "container ray-token ended with code 3"


def test_a_pod_that_is_going_is_not_running() -> None:
    going = pod("gym", "head", deletionTimestamp="now")
    assert told([raycluster("gym", "gym")], [going]) == {"gym/head": "Ending 1/1"}
    done = pod("driver", exit_code=0, ready=False)
    assert told([job()], [done]) == {"driver": "Ending 0/1"}


def test_want_of_memory_is_a_cause_of_its_own_also_of_what_was_started_again() -> None:
    killed = pod("rl", "head")
    container = killed["status"]["containerStatuses"][0]
    container["lastState"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert failed_parts([killed]) == ["rl/head: container ray ended with code 137 (OOMKilled)"]
    container["lastState"]["terminated"]["reason"] = "Error"
    assert failed_parts([killed]) == []
