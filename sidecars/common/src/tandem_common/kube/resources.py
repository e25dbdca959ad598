"""The kinds of objects that the sidecars read and write, and their paths in the API."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of namespaced object."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of its API group and version, where the API server lists its kinds."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def group_resource(self) -> str:
        """Its plural with its group: no other group's kind of that name is meant."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of a collection, an object or a part of one."""
        words = [f"{self.root}/namespaces/{namespace}/{self.plural}", name, subresource]
        return "/".join(word for word in words if word)


CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
PODS = Resource("", "v1", "pods", "Pod")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
JOBS = Resource("batch", "v1", "jobs", "Job")
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAYJOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
