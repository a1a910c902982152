"""The files of the page that was built, by the names under which they are served, and the page as a folder."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from continua.errors import ConfigError
from continua.files import new_folder
from continua.studio.bundle import INDEX, MODEL, Bundle

BUILT = Path(__file__).parent / "page"
DATA = Path(__file__).parent / "data"
MANIFEST = "manifest.json"
PACKED = ".gz"  # of a file that is kept compressed: the runtime of ONNX
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".onnx": "application/octet-stream",
}


@dataclass(frozen=True)
class PageFile:
    """A file as it is kept, and the name under which it is served."""

    name: str
    place: Path

    @property
    def is_packed(self) -> bool:
        """Whether it is kept compressed."""
        return self.place.suffix == PACKED

    @property
    def kind(self) -> str:
        """What a browser is told that it is."""
        return KINDS[Path(self.name).suffix]

    @cached_property
    def kept(self) -> bytes:
        """As it lies on the disk."""
        return self.place.read_bytes()

    def content(self) -> bytes:
        """What is in it."""
        return gzip.decompress(self.kept) if self.is_packed else self.kept


def page_files() -> dict[str, PageFile]:
    """The fixed table of what is served: nothing that is not in it ever is."""
    if not (BUILT / "index.html").is_file():
        raise ConfigError("the page is not built", got=f"no {BUILT.name}/index.html", remedy="Run: make page.")
    found = [path for path in sorted(BUILT.rglob("*")) if path.is_file() and path.name != MANIFEST]
    names = {path.relative_to(BUILT).as_posix().removesuffix(PACKED): path for path in found}
    names |= {path.name: path for path in sorted(DATA.iterdir()) if path.suffix in KINDS}
    return {name: PageFile(name, path) for name, path in names.items()}


def write_page(folder: Path, model: Path, bundle: Bundle) -> Path:
    """The page with its model as plain files, for any static host: whole, or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        got = f"{folder}, which is there"
        raise ConfigError("the page is written into a new folder", got=got, remedy="Choose another name.")
    try:
        with new_folder(folder) as made:
            for name, one in page_files().items():
                place = made / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(one.content())
            shutil.copyfile(model, made / MODEL)
            (made / INDEX).write_text(bundle.as_json(), encoding="utf-8")
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise ConfigError(f"{folder} cannot be written", got=why, remedy="Choose another place.") from problem
    return folder


def source_hash(sources: Path) -> str:
    """One number for all sources of the page: their names and what is in them."""
    total = hashlib.sha256()
    named = [sources / name for name in ("index.html", "package-lock.json", "tsconfig.json", "vite.config.ts")]
    inner = [path for path in (sources / "src").rglob("*") if path.is_file() and not path.name.endswith(".test.ts")]
    for path in sorted([*named, *inner], key=lambda one: one.relative_to(sources).as_posix()):
        total.update(f"{path.relative_to(sources).as_posix()}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).hexdigest().encode())
    return total.hexdigest()


def manifest() -> Mapping[str, str]:
    """What the build wrote of itself: the hash of its sources, and of every file that it made."""
    found: Mapping[str, str] = json.loads((BUILT / MANIFEST).read_text(encoding="utf-8"))
    return found
