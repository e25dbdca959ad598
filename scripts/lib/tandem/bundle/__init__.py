"""The platform's part of the bundle: charts, CRDs and what they make possible.

`.bundle/` is one directory format (design §3). This package fills `charts/` and
`manifests/crds/` from the Go modules that the operators are built from, so that the local
environment needs no chart repository; `tandem.images` fills `images/`. A chart that the
modules do not have (KAI) is used when somebody put it there.
"""
