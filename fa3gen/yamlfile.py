"""YAML with places: a reader that knows line and column of every node and collects all problems of a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fa3gen.errors import ConfigError, Diagnostic, Location, nearest

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

_KINDS = {MappingNode: "a mapping", SequenceNode: "a list", ScalarNode: "a single value"}
_NULL = "tag:yaml.org,2002:null"


def enum_parser(kind: type[E], what: str) -> Callable[[str], E]:
    """Parses the values of ``kind``; the ValueError names ``what``."""

    def parse(text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{what} has no value {text!r}") from None

    return parse


def spellings(kind: type[Enum]) -> tuple[str, ...]:
    return tuple(str(item.value) for item in kind)


class Entry:
    """A key of a mapping with its value."""

    __slots__ = ("key", "name", "value")

    def __init__(self, key: ScalarNode, value: Node) -> None:
        self.key = key
        self.name: str = key.value
        self.value = value


class YamlFile:
    """One YAML file.  The methods that read nodes report what is wrong to ``problems`` and go on."""

    def __init__(self, path: str | Path) -> None:
        """Reads and parses ``path``; raises ConfigError (C001, C002) where that fails."""
        self.file = str(path)
        self.text = ""
        self.problems: list[Diagnostic] = []
        self.text = self._read(Path(path))
        self.root = self._compose()

    def error(self) -> ConfigError:
        """The problems found, ending in the command that reads the file again."""
        hint = f"correct {self.file}, then run `fa3gen list`"
        return ConfigError(self.problems, {self.file: self.text}, hint=hint)

    def location(self, node: Node) -> Location:
        return Location(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def width(self, node: Node) -> int:
        """Characters a node takes on its first line; 1 for what ends on another line."""
        start, end = node.start_mark, node.end_mark
        return max(1, end.column - start.column) if start.line == end.line else 1

    def report(
        self,
        code: str,
        message: str,
        node: Node,
        *,
        hint: str = "",
        allowed: Sequence[str] = (),
        near: str | None = None,
    ) -> None:
        """Adds a problem at ``node``; ``near`` is the word to look up among ``allowed`` for a suggestion."""
        suggestions = nearest(near, allowed) if near is not None else ()
        self.problems.append(
            Diagnostic(code, message, self.location(node), hint, tuple(allowed), suggestions, self.width(node))
        )

    def mapping(
        self, node: Node, what: str, known: Collection[str], required: Collection[str] = ()
    ) -> dict[str, Entry]:
        """The known entries of a mapping, each once; ``what`` names the mapping in messages."""
        entries = self.entries(node, what)
        unknown = [name for name in entries if name not in known]
        for name in unknown:
            hint = "correct the key or remove it"
            message = f"{what} has no key {name!r}"
            self.report("C004", message, entries.pop(name).key, hint=hint, allowed=tuple(known), near=name)
        meant = {guess for name in unknown for guess in nearest(name, known)}  # a misspelt key is not missing as well
        for name in required:
            if isinstance(node, MappingNode) and name not in entries and name not in meant:
                self.report("C007", f"{what} needs the key {name!r}", node, hint=f"add `{name}:`")
        return entries

    def entries(self, node: Node, what: str) -> dict[str, Entry]:
        """All entries of a mapping with free keys, each once."""
        found: dict[str, Entry] = {}
        if not self._is(node, MappingNode, what, "a mapping"):
            return found
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.report(
                    "C005", f"a key of {what} must be a single value, not {_kind(key)}", key, hint="write `key: value`"
                )
            elif key.value in found:
                first = self.location(found[key.value].key)
                self.report(
                    "C003",
                    f"{what} gives {key.value!r} twice; first at line {first.line}",
                    key,
                    hint="keep one of them; a list holds several values",
                )
            else:
                found[key.value] = Entry(key, value)
        return found

    def items(self, node: Node, what: str) -> list[Node]:
        """The items of a list; what is no list is its only item."""
        if not isinstance(node, SequenceNode):
            return [node]
        if not node.value:
            self.report("C009", f"{what} is an empty list", node, hint="add a value or remove the key")
        return list(node.value)

    def sequence(self, node: Node, what: str) -> list[Node]:
        """The items of what must be a list, and may be empty."""
        return list(node.value) if self._is(node, SequenceNode, what, "a list") else []

    def schema(self, node: Node, readable: str) -> None:
        """Reports a file whose schema version is not ``readable``."""
        text = self.scalar(node, "schema")
        if text not in (None, readable):
            hint = f"write `schema: {readable}`, or install the fa3gen that reads schema {text}"
            self.report(
                "C008", f"schema {text}: this fa3gen reads schema {readable}", node, hint=hint, allowed=(readable,)
            )

    def scalar(self, node: Node, what: str) -> str | None:
        """The text of a single value as it is spelled; ``None`` (and a problem) where it is none."""
        if not self._is(node, ScalarNode, what, "a single value"):
            return None
        if node.tag == _NULL or not node.value.strip():
            self.report("C007", f"{what} has no value", node, hint="add a value or remove the key")
            return None
        return str(node.value)

    def value(self, node: Node, what: str, parse: Callable[[str], T], allowed: Sequence[str]) -> T | None:
        """A single value read by ``parse``, whose ValueError says what is wrong."""
        text = self.scalar(node, what)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.report("C006", str(error), node, hint="correct the value", allowed=allowed, near=text)
            return None

    def choice(self, entries: Mapping[str, Entry], key: str, kind: type[E], default: E) -> E:
        """The entry ``key`` as a member of ``kind``; the default where it is absent or wrong."""
        if key not in entries:
            return default
        return self.value(entries[key].value, key, enum_parser(kind, key), spellings(kind)) or default

    def _is(self, node: Node, kind: type[Node], what: str, wanted: str) -> bool:
        if isinstance(node, kind):
            return True
        self.report("C005", f"{what} must be {wanted}, not {_kind(node)}", node, hint=f"write {wanted}")
        return False

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise self._fatal("C001", f"cannot read {self.file}: {error.strerror}", None) from error
        except UnicodeDecodeError as error:
            message = f"{self.file} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
            raise self._fatal("C001", message, None) from error

    def _compose(self) -> Node:
        try:
            node = yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = Location(self.file, mark.line + 1, mark.column + 1) if mark else Location(self.file, 1, 1)
            raise self._fatal("C002", f"no YAML: {error.problem or error.context}", place) from error
        except yaml.reader.ReaderError as error:
            before = self.text[: error.position]
            place = Location(self.file, before.count("\n") + 1, len(before) - before.rfind("\n"))
            raise self._fatal(
                "C002", f"no YAML: the character U+{int(error.character):04X} is not allowed", place
            ) from error
        except RecursionError as error:
            raise self._fatal(
                "C002", "no YAML for fa3gen: it is nested too deeply", Location(self.file, 1, 1)
            ) from error
        if node is None:
            raise self._fatal("C002", f"{self.file} is empty", None)
        return node

    def _fatal(self, code: str, message: str, location: Location | None) -> ConfigError:
        hint = "name a readable file of UTF-8 text" if code == "C001" else "correct the YAML"
        return ConfigError([Diagnostic(code, message, location, hint)], {self.file: self.text})


def _kind(node: Node) -> str:
    return "nothing" if node.tag == _NULL else _KINDS[type(node)]
