from __future__ import annotations

from typing import Any

from tandem.schemas.convert import closure, crd_schemas, file_name, kubernetes_schemas, strict

META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
OPENAPI: dict[str, Any] = {
    "definitions": {
        META: {"type": "object", "properties": {"name": {"type": "string"}}},
        "example.Tree": {"properties": {"child": {"$ref": "#/definitions/example.Tree"}}},
        "example.Thing": {
            "type": "object",
            "properties": {
                "metadata": {"$ref": f"#/definitions/{META}"},
                "tree": {"$ref": "#/definitions/example.Tree"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "x-kubernetes-group-version-kind": [
                {"group": "example.test", "version": "v1", "kind": "Thing"}
            ],
        },
    }
}


def test_objects_take_only_what_they_declare() -> None:
    found = strict({"properties": {"a": {"properties": {"b": {"type": "string"}}}}})
    assert found["additionalProperties"] is False
    assert found["properties"]["a"]["additionalProperties"] is False


def test_maps_and_open_ended_objects_stay_open() -> None:
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    assert strict(labels) == labels
    open_ended = {"properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": True}
    assert "additionalProperties" not in strict(open_ended)


def test_a_property_named_like_a_keyword_is_a_property() -> None:
    found = strict({"properties": {"description": {"type": "string", "description": "text"}}})
    assert found["properties"]["description"] == {"type": "string"}


def test_numbers_or_words_and_nulls() -> None:
    assert strict({"x-kubernetes-int-or-string": True, "anyOf": []}) == {
        "oneOf": [{"type": "integer"}, {"type": "string"}]
    }
    assert strict({"type": "string", "nullable": True}) == {"type": ["string", "null"]}


def test_definitions_are_followed_and_recursion_ends() -> None:
    definitions = OPENAPI["definitions"]
    assert set(closure("example.Thing", definitions)) == {"example.Thing", "example.Tree", META}


def test_a_kind_insists_on_its_own_name() -> None:
    [(name, schema)] = kubernetes_schemas(OPENAPI).items()
    assert name == file_name("example.test", "v1", "Thing") == "thing-example.test-v1.json"
    assert schema["properties"]["kind"] == {"const": "Thing"}
    assert schema["properties"]["apiVersion"] == {"const": "example.test/v1"}
    assert {"apiVersion", "kind"} <= set(schema["required"])


def test_the_core_group_is_named_by_its_version() -> None:
    assert file_name("", "v1", "Pod") == "pod-v1-v1.json"


def test_every_version_of_a_crd_gets_a_schema_with_strict_metadata() -> None:
    crd = {
        "spec": {
            "group": "example.test",
            "names": {"kind": "Thing"},
            "versions": [
                {
                    "name": version,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {"metadata": {"type": "object"}, "spec": {}},
                        }
                    },
                }
                for version in ("v1", "v2")
            ],
        }
    }
    found = crd_schemas(crd, OPENAPI)
    assert set(found) == {"thing-example.test-v1.json", "thing-example.test-v2.json"}
    schema = found["thing-example.test-v1.json"]
    assert schema["properties"]["metadata"] == {"$ref": f"#/definitions/{META}"}
    assert schema["definitions"][META]["additionalProperties"] is False
