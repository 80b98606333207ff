"""Imports go one way. Imports for types and inside functions count.

CONTRIBUTING and the design page show this map, which ``python tests/unit/test_layers.py`` writes.
"""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = [
    {"__main__"},
    {"interfaces"},  # apart from the core: what people use
    {"integrations"},  # apart from the core: what connects it to other products
    {"jobs", "pyspark_mq"},
    {"spark_mq"},  # the package itself: exports everything, and hooks in the Spark side
    {"spark"},
    {"pytest_plugin"},
    {"testing"},
    {"queue"},
    {"group"},
    {"worker"},
    {"lease", "handler", "publisher"},
    {"inspect"},
    {"maintenance", "streaming"},
    {"operations"},
    {"storage", "message"},
    {"parquet"},
    {"ledger"},
    {"delta"},
    {"telemetry"},
    {"util"},
    {"errors"},
]
"""Each may import what stands below it, and itself."""
NOT_TOGETHER = {
    ("handler", "publisher"),
    ("maintenance", "streaming"),
    ("ledger", "delta"),
    ("lease", "publisher"),
}
IMPORTS = {
    "airflow": ("spark_mq.integrations.airflow",),
    "deltalake": ("spark_mq.delta.tables", "spark_mq.storage.delta_sink"),
    "obstore": ("spark_mq.delta.remote_files",),
    "pyspark": ("spark_mq.spark", "jobs"),
}
"""The only modules and packages that import these."""
JVM = {
    *("_active_spark_context", "_gateway", "_jc", "_jconf", "_jdf", "_jsc", "_jsparkSession"),
    *("_jsq", "_jvm", "_jwrite", "_sc"),
}
"""Where a session, a DataFrame or a query of pyspark keeps its object in the JVM."""
STORES = {"MessageTable", "LedgerTable", "HistoryTable"}


def _modules() -> dict[str, ast.Module]:
    paths = [*ROOT.glob("spark_mq/**/*.py"), *ROOT.glob("jobs/*.py"), ROOT / "pyspark_mq.py"]
    return {_name(path): ast.parse(path.read_text()) for path in paths}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = _modules()


@cache
def _imports(tree: ast.Module) -> list[str]:
    """All modules that a module imports, wherever the statement stands."""
    found = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            submodules = [name for name in whole if name in MODULES]
            found += submodules
            if len(submodules) < len(whole):
                found.append(node.module)
    return found


def _own(name: str) -> set[str]:
    return {found for found in _imports(MODULES[name]) if found in MODULES and found != name}


def _room(name: str) -> str:
    """The package, or the module at the top level, that a module belongs to."""
    parts = name.split(".")
    return parts[1] if parts[0] == "spark_mq" and len(parts) > 1 else parts[0]


def _floor(name: str) -> int:
    return next(floor for floor, rooms in enumerate(LAYERS) if _room(name) in rooms)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_what_stands_below_it(name: str) -> None:
    for imported in _own(name):
        same = _room(imported) == _room(name)
        assert same or _floor(imported) > _floor(name), f"{name} imports {imported}"
        assert not {(_room(name), _room(imported)), (_room(imported), _room(name))} & NOT_TOGETHER


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter({name: _own(name) for name in MODULES}).prepare()


def test_one_module_asks_the_private_classes_of_spark() -> None:
    found = {
        name
        for name, tree in MODULES.items()
        if any(isinstance(node, ast.Attribute) and node.attr in JVM for node in ast.walk(tree))
        or any(
            imported.startswith(("py4j", "pyspark.java_gateway", "pyspark.serializers"))
            or re.match(r"pyspark\..*\._|pyspark\._", imported)
            for imported in _imports(tree)
        )
    }
    assert found == {"spark_mq.spark.private_spark"}


@pytest.mark.parametrize("package", IMPORTS)
def test_few_modules_import_a_package_of_others(package: str) -> None:
    places = IMPORTS[package]
    found = {name for name, tree in MODULES.items() if _uses(tree, package)}
    assert not [name for name in found if not f"{name}.".startswith(tuple(places))]
    assert not [place for place in places if not any(name.startswith(place) for name in found)]


def _uses(tree: ast.Module, package: str) -> bool:
    return any(name.split(".")[0] == package for name in _imports(tree))


def test_nothing_above_storage_asks_for_the_class_of_a_store() -> None:
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                named = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                assert _room(name) == "storage" or not named & STORES, (
                    f"{name}: {ast.unparse(node)}"
                )


def layers_text() -> str:
    """Return the layers for CONTRIBUTING, from the top to the bottom."""
    text = " -> ".join(", ".join(sorted(rooms)) for rooms in LAYERS)
    return "```text\n" + textwrap.fill(text, 96, subsequent_indent="  ") + "\n```\n"


def packages_table() -> str:
    """Return the packages from the bottom to the top, with the first line of their docstrings."""
    rows = ["| package | what it is for |", "| --- | --- |"]
    for rooms in reversed(LAYERS):
        for room in sorted(rooms & PACKAGES.keys()):
            first = ast.get_docstring(PACKAGES[room]).partition("\n")[0]
            rows.append(f"| `{room}` | {first.removesuffix('.').replace('``', '`')} |")
    return "\n".join(rows) + "\n"


PACKAGES = {
    path.parent.name: MODULES[f"spark_mq.{path.parent.name}"]
    for path in ROOT.glob("spark_mq/*/__init__.py")
}
PAGES = {
    ROOT / "CONTRIBUTING.md": layers_text,
    ROOT / "docs" / "explanation" / "design.md": packages_table,
}
_MAP = re.compile(r"(?<=<!-- generated: map -->\n\n).*?(?=\n<!-- end -->)", re.S)


def _with_map(page: Path) -> str:
    text, found = _MAP.subn(lambda _: PAGES[page](), page.read_text(encoding="utf-8"))
    assert found == 1, f"{page.name} has {found} places for the map"
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_show_this_map(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == _with_map(page), (
        "run tests/unit/test_layers.py, which writes the map"
    )


def test_modules_are_short() -> None:
    """At most 350 lines that are neither blank, nor comments, nor docstrings."""
    paths = [*ROOT.glob("spark_mq/**/*.py"), *ROOT.glob("jobs/*.py")]
    assert not {_name(path) for path in paths if _code_lines(path) > 350}


def _code_lines(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    documented = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in enumerate(text.splitlines(), 1)
    )


if __name__ == "__main__":
    for written in PAGES:
        written.write_text(_with_map(written), encoding="utf-8")
