"""JSON schemas of everything that manifests here may hold, generated, strict, offline.

Kubernetes' own kinds come from the OpenAPI document in its Go module, custom kinds from
the CRDs of the bundle. Where neither has a kind (KAI's, when the bundle is without KAI),
a schema written by hand stands in: `handwritten/`.
"""
