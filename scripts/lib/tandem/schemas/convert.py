"""From OpenAPI, as Kubernetes and CRDs have it, to strict JSON schema. Pure.

Strict: an object with known properties takes no others, so that a typing error in a
manifest is an error here and not a field that the API server drops silently.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_REF = "#/definitions/"
_INT_OR_STRING = {"oneOf": [{"type": "integer"}, {"type": "string"}]}
#: Definitions whose OpenAPI type is narrower than what the API server reads.
_LOOSER: dict[str, Schema] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _INT_OR_STRING,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_KINDS = "x-kubernetes-group-version-kind"


def strict(schema: Any) -> Any:
    """Return a schema whose objects take only the properties that they declare."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return dict(_INT_OR_STRING)
    done: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            done[key] = {name: strict(each) for name, each in value.items()}
        elif key in ("enum", "required", "default", "example"):
            done[key] = value
        elif key != "description" and not key.startswith("x-kubernetes-"):
            done[key] = strict(value)
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and "additionalProperties" not in schema and not open_ended:
        done["additionalProperties"] = False
    if done.pop("nullable", False) and isinstance(done.get("type"), str):
        done["type"] = [done["type"], "null"]
    return done


def references(schema: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to directly."""
    if isinstance(schema, list):
        return {name for each in schema for name in references(each)}
    if not isinstance(schema, dict):
        return set()
    found = {name for value in schema.values() for name in references(value)}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_REF):
        found.add(reference.removeprefix(_REF))
    return found


def closure(name: str, definitions: dict[str, Schema]) -> dict[str, Schema]:
    """Return a definition and all that it needs, however deep."""
    found: dict[str, Schema] = {}
    todo = {name}
    while todo:
        each = todo.pop()
        found[each] = definitions[each]
        todo |= references(definitions[each]) - set(found)
    return found


def definitions_of(openapi: Schema) -> dict[str, Schema]:
    """Return Kubernetes' definitions, strict, by name."""
    found = {name: strict(schema) for name, schema in openapi["definitions"].items()}
    return found | _LOOSER


def file_name(group: str, version: str, kind: str) -> str:
    """Return where kubeconform looks for a kind (`LOCATION` in generate.py).

    The core group's name is its version there: kubeconform takes what is before the `/`.
    """
    return f"{kind.lower()}-{group or version}-{version}.json"


def _of_kind(schema: Schema, group: str, version: str, kind: str) -> Schema:
    """Return a kind's schema that insists on its own apiVersion and kind."""
    api_version = f"{group}/{version}" if group else version
    properties = dict(schema.get("properties", {}))
    properties["apiVersion"] = {"const": api_version}
    properties["kind"] = {"const": kind}
    required = sorted({*schema.get("required", []), "apiVersion", "kind"})
    return schema | {"properties": properties, "required": required}


def kubernetes_schemas(openapi: Schema) -> dict[str, Schema]:
    """Return one schema for each kind of Kubernetes, by file name."""
    definitions = definitions_of(openapi)
    found: dict[str, Schema] = {}
    for name, raw in openapi["definitions"].items():
        kinds = raw.get(_KINDS, [])
        # DeleteOptions and its like belong to every group: they are no objects to apply.
        if len(kinds) != 1 or "metadata" not in raw.get("properties", {}):
            continue
        [gvk] = kinds
        group, version, kind = gvk["group"], gvk["version"], gvk["kind"]
        needed = closure(name, definitions)
        schema = _of_kind(needed.pop(name), group, version, kind)
        if name in references(list(needed.values())):
            needed[name] = definitions[name]
        found[file_name(group, version, kind)] = schema | {"definitions": needed}
    return found


def crd_schemas(crd: Schema, openapi: Schema) -> dict[str, Schema]:
    """Return one schema for each version of a CRD, by file name; metadata as Kubernetes has it."""
    definitions = definitions_of(openapi)
    spec = crd["spec"]
    group, kind = spec["group"], spec["names"]["kind"]
    found: dict[str, Schema] = {}
    for each in spec["versions"]:
        schema = strict(each["schema"]["openAPIV3Schema"])
        schema = _of_kind(schema, group, each["name"], kind)
        schema["properties"]["metadata"] = {"$ref": _REF + OBJECT_META}
        schema["definitions"] = closure(OBJECT_META, definitions)
        found[file_name(group, each["name"], kind)] = schema
    return found
