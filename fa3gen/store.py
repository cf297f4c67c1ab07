"""The store of compiled kernels: one folder a digest, complete or not there.

An object is written beside its place and then renamed, so that builds may share a store; one that was cut off or
changed since is not found, and the next build replaces it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa3gen.digest import sha256

META = "meta.json"
_TEMPORARY = ".tmp-"
_LOCK = ".lock"


@dataclass(frozen=True)
class StoredObject:
    """An object of the store: its files and what ``meta.json`` says of it."""

    digest: str
    path: Path
    meta: Mapping[str, Any]

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class Store:
    """Objects under ``root``, by digest."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, digest: str) -> StoredObject | None:
        """The object, if it is there and as it was written."""
        path = self.root / digest
        try:
            meta = json.loads((path / META).read_text(encoding="utf-8"))
            files: Mapping[str, str] = meta["files"]
            intact = all(sha256((path / name).read_bytes()) == expected for name, expected in files.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return StoredObject(digest, path, meta) if intact else None

    def put(self, digest: str, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> StoredObject:
        """Writes an object, unless another process was faster; replaces a damaged one."""
        self.root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
        try:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            complete = {**meta, "files": {name: sha256(data) for name, data in sorted(files.items())}}
            text = json.dumps(complete, indent=1, sort_keys=True) + "\n"
            (folder / META).write_text(text, encoding="utf-8")
            folder.chmod(0o755)
            self._place(folder, digest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        stored = self.get(digest)
        if stored is None:
            raise OSError(f"{self.root / digest} changed while it was written")
        return stored

    def discard(self, digest: str) -> None:
        """Removes an object, whole or damaged."""
        trash = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
        with contextlib.suppress(FileNotFoundError):
            (self.root / digest).rename(trash / digest)
        shutil.rmtree(trash, ignore_errors=True)

    def objects(self) -> Iterator[StoredObject]:
        """Every object that is intact, by digest."""
        for path in sorted(self.root.glob("*/" + META)):
            stored = None if path.parent.name.startswith(_TEMPORARY) else self.get(path.parent.name)
            if stored is not None:
                yield stored

    def _place(self, folder: Path, digest: str) -> None:
        """Renames ``folder`` to its place; leaves an intact object alone."""
        with self._locked():
            if self.get(digest) is None:
                self.discard(digest)
                folder.rename(self.root / digest)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes from replacing objects."""
        with (self.root / _LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
