"""A thin Kubernetes client on httpx: few calls, typed errors, deadlines, watches.

Not the `kubernetes` package: that one alone takes more memory than a sidecar may have.
"""

from tandem_common.kube.client import Client, ObjectList
from tandem_common.kube.config import ClusterConfig, from_kubeconfig, in_cluster, load_config
from tandem_common.kube.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    NamespaceTerminating,
    NetworkError,
    NotFound,
    OtherObject,
    OwnedByAnother,
    ServerError,
    TooManyRequests,
    Transient,
    Unauthorized,
)
from tandem_common.kube.informer import Informer
from tandem_common.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    JOBSETS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    Resource,
)
from tandem_common.kube.watch import Changed, Contact, Lost, Synced, Watch, WatchEvent

__all__ = [
    "CONFIGMAPS",
    "DEPLOYMENTS",
    "EVENTS",
    "JOBS",
    "JOBSETS",
    "PODS",
    "RAYCLUSTERS",
    "RAYJOBS",
    "AlreadyExists",
    "Changed",
    "Client",
    "ClusterConfig",
    "Conflict",
    "Contact",
    "DeadlineExceeded",
    "Expired",
    "Forbidden",
    "Informer",
    "Invalid",
    "KubeError",
    "Lost",
    "NamespaceTerminating",
    "NetworkError",
    "NotFound",
    "ObjectList",
    "OtherObject",
    "OwnedByAnother",
    "Resource",
    "ServerError",
    "Synced",
    "TooManyRequests",
    "Transient",
    "Unauthorized",
    "Watch",
    "WatchEvent",
    "from_kubeconfig",
    "in_cluster",
    "load_config",
]
