"""Generate the schemas into build/schemas; quick when nothing has changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from tandem.bundle.layout import FILL, Layout
from tandem.bundle.modules import module_folder
from tandem.errors import Problem, UserError
from tandem.paths import BUILD
from tandem.schemas.convert import crd_schemas, kubernetes_schemas
from tandem.versions import pinned
from tandem.yamls import load_all

FOLDER = BUILD / "schemas"
#: How kubeconform finds the file of a kind (its own template language).
LOCATION = "{{ .ResourceKind }}-{{ .Group }}-{{ .ResourceAPIVersion }}.json"
_HANDWRITTEN = Path(__file__).parent / "handwritten"


def _key(crds: list[Path]) -> str:
    digest = hashlib.sha256(pinned("kubernetes").encode())
    sources = [*Path(__file__).parent.glob("*.py"), *_HANDWRITTEN.glob("*.json"), *crds]
    for path in sorted(sources):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def generate(layout: Layout | None = None, folder: Path = FOLDER) -> tuple[int, bool]:
    """Bring the schemas up to date; return how many there are and whether they were made now.

    Raises:
        UserError: The bundle's CRDs or Kubernetes' module are missing.
    """
    crds = sorted((layout or Layout()).crds.glob("*.yaml"))
    if not crds:
        raise UserError(Problem("the bundle holds no CRDs to generate schemas from", FILL))
    key = _key(crds)
    stamp = folder / ".key"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return len(list(folder.glob("*.json"))), False
    module = module_folder("kube", "k8s.io/kubernetes")
    openapi = json.loads((module / "api" / "openapi-spec" / "swagger.json").read_bytes())
    schemas = {
        path.name: json.loads(path.read_bytes()) for path in sorted(_HANDWRITTEN.glob("*.json"))
    }
    schemas |= kubernetes_schemas(openapi)
    for path in crds:
        for crd in load_all(path.read_text(encoding="utf-8")):
            schemas |= crd_schemas(crd, openapi)  # a real CRD wins over a handwritten schema
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, schema in schemas.items():
        (folder / name).write_text(json.dumps(schema), encoding="utf-8")
    stamp.write_text(key, encoding="utf-8")
    return len(schemas), True
