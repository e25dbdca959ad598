import pytest

from tandem.errors import ExitCode, UserError
from tandem.paths import ROOT
from tandem.tools.build import groups
from tandem.tools.catalogue import Program, all_programs, go_modules
from tandem.tools.check import version_in


def test_no_two_groups_make_the_same_program() -> None:
    names = [program.name for program in all_programs()]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("module", go_modules(), ids=lambda module: module.name)
def test_every_module_names_its_programs_in_go_mod_or_holds_their_source(module: object) -> None:
    assert hasattr(module, "name")
    assert hasattr(module, "programs")
    folder = ROOT / "tools" / module.name
    tools = (folder / "go.mod").read_text()
    for program in module.programs:
        if program.source.startswith("./"):
            assert list((folder / program.source).glob("*.go")), program
        else:
            assert program.source in tools, program


@pytest.mark.parametrize(
    ("source", "built"),
    [
        ("go.etcd.io/etcd/server/v3", "server"),
        ("sigs.k8s.io/jobset", "jobset"),
        ("./coredns", "coredns"),
    ],
)
def test_the_name_go_gives_a_program(source: str, built: str) -> None:
    assert Program("x", source, "v1.0.0").built_name == built


@pytest.mark.parametrize(
    ("text", "wanted", "found"),
    [
        ("Kubernetes v1.36.3", "1.36.3", "1.36.3"),
        ("containerd github.com/containerd v2.4.2 \n go1.27.3", "2.4.2", "2.4.2"),
        ("v4.2.3+g43e8b7f", "4.2.3", "4.2.3"),
        ("etcd Version: 3.7.30\nGo Version: go1.27.3", "3.7.3", "3.7.30"),
        ("no version", "1.0.0", ""),
    ],
)
def test_the_version_in_what_a_program_prints(text: str, wanted: str, found: str) -> None:
    assert version_in(text, wanted) == found


def test_an_unknown_group_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown group of tools: etdc") as refused:
        groups(["etdc", "kube"])
    assert refused.value.code == ExitCode.USAGE
    assert "etcd" in refused.value.problems[0].fix
